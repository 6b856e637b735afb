// SPDX-License-Identifier: MIT
#include "agent/store/redis/shard.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "agent/store/redis/codec/bucket_call.h"
#include "agent/store/redis/codec/counter_call.h"
#include "agent/store/redis/codec/script.h"
#include "agent/store/redis/codec/server_error.h"

namespace allowd::store {
namespace {

using limiter::Operation;

// Tickets of askers are never this: questions of our own (giving back) carry it.
constexpr std::uint64_t kNobody = ~std::uint64_t{0};

constexpr limiter::Micros kResetPatience = std::chrono::seconds(1);

std::size_t shape_of(const ScriptCall& call) {
  return static_cast<std::size_t>(call.definition(call.items().front()).shape());
}

}  // namespace

Shard::Shard(loop::Loop& loop, Options options)
    : loop_(loop),
      max_questions_(options.max_questions),
      max_growing_calls_(options.max_growing_calls),
      max_full_calls_(options.max_full_calls),
      troubles_(options.link.random_seed),
      link_(loop, [&] {
        options.link.script = decision_script();
        return std::move(options.link);
      }()) {
  link_.set_reminder([this, reported = std::uint64_t{0}]() mutable {
    const std::uint64_t since = refused_unasked_total_ - std::exchange(reported, refused_unasked_total_);
    return std::to_string(since) + " questions answered by on_failure since the last such line";
  });
}

std::optional<ShardTime> Shard::time(SteadyTime now) const {
  if (!link_.is_up()) return std::nullopt;
  return ShardTime{link_.clock().at(now), link_.clock().uncertainty(now), link_.epoch()};
}

bool Shard::ask(const SharedQuestion& question, std::string_view redis_key) {
  const auto shape = static_cast<std::size_t>(question.definition->shape());
  if (!link_.is_up() || questions_open_ >= max_questions_ || troubles_.is_forbidden(shape, loop_.now())) {
    refused_unasked_total_ += question.times;
    return false;
  }
  open_call(question.definition->shape())
      .add(question.operation, *question.definition, redis_key, question.cost, question.ticket,
           question.times);
  ++questions_open_;
  ++questions_total_;
  return true;
}

bool Shard::ask_together(std::span<const SharedQuestion> questions, std::span<const std::string> redis_keys) {
  const bool are_takes = std::all_of(questions.begin(), questions.end(), [](const SharedQuestion& question) {
    // A shadow's refusal would stop the others there; what is forced cannot be looked at first.
    return question.definition->shape() == limiter::Definition::Shape::bucket &&
           !question.definition->is_shadow() && question.operation == Operation::take;
  });
  if (!are_takes || questions.size() > ScriptCall::kMaxWeight) return false;
  if (!link_.is_up() || questions_open_ + questions.size() > max_questions_) return false;
  constexpr auto kBucket = static_cast<std::size_t>(limiter::Definition::Shape::bucket);
  if (troubles_.is_forbidden(kBucket, loop_.now())) return false;
  auto call = std::make_shared<BucketCall>();
  call->decide_together();
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const SharedQuestion& question = questions[i];
    call->add(question.operation, *question.definition, redis_keys[i], question.cost, question.ticket);
  }
  questions_open_ += questions.size();
  questions_total_ += questions.size();
  waiting_.push_back(std::move(call));
  return true;
}

ScriptCall& Shard::open_call(limiter::Definition::Shape shape) {
  ScriptCall*& open = open_[static_cast<std::size_t>(shape)];
  if (open == nullptr || open->is_full()) {
    waiting_.push_back(ScriptCall::make(shape));
    open = waiting_.back().get();
  }
  return *open;
}

bool Shard::is_wanted(const ScriptCall& call) const {
  return std::any_of(call.items().begin(), call.items().end(), [this](const ScriptCall::Item& item) {
    return item.ticket == kNobody || sink_->is_waiting(item.ticket);
  });
}

void Shard::flush() {
  if (!link_.is_up()) {
    open_ = {};
    for (const Call& call : std::exchange(waiting_, {})) drop_unsent(*call);
    return;
  }
  for (const GiveBack& debt : std::exchange(owed_, {})) {
    open_call(debt.definition->shape())
        .add(Operation::refund, *debt.definition, debt.redis_key, debt.cost, kNobody);
    ++questions_open_;
    ++given_back_total_;
  }
  while (!waiting_.empty() && may_send(*waiting_.front())) {
    Call call = std::move(waiting_.front());
    waiting_.pop_front();
    std::replace(open_.begin(), open_.end(), call.get(), static_cast<ScriptCall*>(nullptr));
    // Everybody may have been answered while it waited; asking now would charge for nothing.
    is_wanted(*call) ? send(std::move(call)) : drop_unsent(*call);
  }
  link_.connection().flush();
}

bool Shard::may_send(const ScriptCall& call) {
  // What is full gains nothing by waiting.
  return link_.connection().open_commands() < (call.is_full() ? max_full_calls_ : max_growing_calls_);
}

void Shard::send(Call call) {
  Connection& connection = link_.connection();
  ++calls_total_;
  auto* counters = link_.counts_without_script() ? dynamic_cast<CounterCall*>(call.get()) : nullptr;
  if (counters != nullptr && !counters->has_repeated()) {
    const std::size_t before =
        counters->write_transaction(connection.outbox(), link_.clock().at(loop_.now()));
    connection.expect([this, call = std::move(call)](const Reply& reply) { on_transaction(call, reply); },
                      before);
  } else {
    call->write(connection.outbox(), link_.script_sha(), link_.clock().at(loop_.now()),
                link_.scripts_tell_time());
    connection.expect([this, call = std::move(call)](const Reply& reply) { on_reply(call, reply); });
  }
  link_.watch_for_stall();
}

bool Shard::has_failed(const Call& call, const Reply& reply) {
  if (reply == nullptr) {
    lost_total_ += call->items().size();
    fail(*call);
    return true;
  }
  if (!is_error(reply)) return false;
  const ErrorReply error = read_error(text_of(reply));
  if (error.kind == ServerError::script_lost) {
    repeat(*call);
    return true;
  }
  troubles_.count(error.kind);
  count_error(*call, text_of(reply), error.code);
  fail(*call);
  if (error.kind == ServerError::wrong_server) {
    link_.drop({Error::Code::retry_later, std::string(text_of(reply))});
  }
  return true;
}

void Shard::on_reply(const Call& call, const Reply& reply) {
  if (reply != nullptr && is_error(reply) && read_error(text_of(reply)).kind == ServerError::not_permitted) {
    troubles_.forbid(shape_of(*call), loop_.now());
    link_.explain_refusal(call->redis_key(call->items().front()));
  }
  if (has_failed(call, reply)) return;
  if (!call->fits(*reply)) {
    fail(*call);
    return link_.drop({Error::Code::system, "the script's answer is malformed"});
  }
  healed_total_ += ScriptCall::healed(*reply);
  call->take_time(*reply);
  settle(*call, call->answers(*reply));
}

void Shard::on_transaction(const Call& call, const Reply& reply) {
  // A user who may not run transactions: the script needs no other right than it has.
  if (reply != nullptr && is_error(reply)) {
    const std::string_view code = read_error(text_of(reply)).code;
    if (code == "NOPERM" || code == "EXECABORT" || code == "ERR") link_.stop_transactions();
  }
  if (has_failed(call, reply)) return;
  const auto answers = static_cast<const CounterCall&>(*call).transaction_answers(*reply);
  if (answers.empty()) {
    fail(*call);
    return link_.drop({Error::Code::system, "the answer to EXEC is malformed"});
  }
  settle(*call, answers);
}

void Shard::settle(const ScriptCall& call, const std::vector<SharedAnswer>& answers) {
  std::string& reported = reported_errors_[shape_of(call)];
  if (!reported.empty()) spdlog::info("redis {}: {} succeeds again", link_.name(), name_of(call.algorithm()));
  reported.clear();
  for (std::size_t i = 0; i < call.items().size(); ++i) {
    const ScriptCall::Item& item = call.items()[i];
    const SharedAnswer& answer = answers[i];
    if (answer.status == Answer::Status::promised) {
      repeat(call, item);
      continue;
    }
    --questions_open_;
    if (answer.status == Answer::Status::failed) ++unknown_format_total_;
    if (item.ticket == kNobody) continue;
    owe(call, item, sink_->on_answer(item.ticket, answer, loop_.now()));
  }
}

void Shard::owe(const ScriptCall& call, const ScriptCall::Item& item, std::int64_t cost) {
  // As many as questions may be open: more cannot come late.
  if (cost == 0 || owed_.size() >= max_questions_) return;
  if (call.definition(item).shape() == limiter::Definition::Shape::counter) return;  // it counts refusals too
  owed_.push_back({std::string(call.redis_key(item)), call.definition(item).shared_from_this(), cost});
}

void Shard::repeat(const ScriptCall& call) {
  if (!link_.is_up()) return drop_unsent(call);  // nothing was charged
  ++script_reloads_total_;
  link_.reload_script();
  if (call.is_together()) {
    auto again = std::make_shared<BucketCall>();
    again->decide_together();
    for (const ScriptCall::Item& item : call.items()) {
      const bool is_wanted = sink_->is_waiting(item.ticket) && !item.was_repeated;
      if (!is_wanted) return fail(call);  // they were asked as one, and expire as one
      again->add(item.operation, call.definition(item), call.redis_key(item), item.cost, item.ticket, 1,
                 true);
    }
    waiting_.push_back(std::move(again));
    return;
  }
  for (const ScriptCall::Item& item : call.items()) repeat(call, item);
}

void Shard::repeat(const ScriptCall& call, const ScriptCall::Item& item) {
  const bool is_wanted = item.ticket == kNobody || sink_->is_waiting(item.ticket);
  if (!link_.is_up() || !is_wanted || item.was_repeated) return answer_failed(item);
  open_call(call.definition(item).shape())
      .add(item.operation, call.definition(item), call.redis_key(item), item.cost, item.ticket, item.times,
           true);
}

void Shard::answer_failed(const ScriptCall::Item& item) {
  --questions_open_;
  if (item.ticket != kNobody) static_cast<void>(sink_->on_answer(item.ticket, {}, loop_.now()));
}

void Shard::fail(const ScriptCall& call) {
  for (const ScriptCall::Item& item : call.items()) answer_failed(item);
}

void Shard::drop_unsent(const ScriptCall& call) {
  for (const ScriptCall::Item& item : call.items()) {
    if (item.ticket == kNobody) {
      owe(call, item, item.cost);
      --given_back_total_;
    }
    answer_failed(item);
  }
}

void Shard::count_error(const ScriptCall& call, std::string_view text, std::string_view code) {
  constexpr std::size_t kMaxCodes = 32;
  if (errors_.size() < kMaxCodes || errors_.contains(code)) ++errors_[std::string(code)];
  std::string& reported = reported_errors_[shape_of(call)];
  if (reported == code) return;  // one line per change of state
  reported = code;
  spdlog::warn("redis {}: {} fails: {}; on_failure decides meanwhile", link_.name(),
               name_of(call.algorithm()), text);
}

void Shard::reset(std::string_view redis_key, std::function<void(bool)> done) {
  if (!link_.is_up()) return done(false);
  Connection& connection = link_.connection();
  flush();  // what was asked before is decided before
  const std::uint64_t number = ++last_reset_;
  Reset& reset = resets_.try_emplace(number, Reset{loop::Timer(loop_), std::move(done)}).first->second;
  reset.patience.once(kResetPatience, [&reset] { std::exchange(reset.done, nullptr)(false); });
  write_command(connection.outbox(), {"DEL", redis_key});
  connection.expect([this, number](const Reply& reply) {
    const auto answered = resets_.extract(number);
    if (answered.mapped().done) answered.mapped().done(reply != nullptr && !is_error(reply));
  });
  connection.flush();
  link_.watch_for_stall();
}

std::string_view Shard::heading() {
  return "url state scripts questions_open clock_uncertainty_us counter\n";
}

std::string Shard::describe() const {
  std::string text = link_.url();
  text += link_.is_up() ? " up " : " down ";
  text += std::to_string(calls_total_) + " " + std::to_string(questions_open_) + " " +
          std::to_string(link_.clock().uncertainty(loop_.now()).count());
  text += !link_.is_up() ? " unknown\n" : link_.counts_without_script() ? " multi\n" : " script\n";
  return text;
}

limiter::Micros Shard::next_probe_in(SteadyTime now) const {
  // While the link is up every question is a probe.
  return link_.is_up() ? limiter::Micros{1} : link_.next_attempt_in(now);
}

void Shard::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  link_.collect(metrics);
  const auto add = [&](std::string_view name, Kind kind, std::string_view help, std::uint64_t value) {
    metrics.push_back({"redis_" + std::string(name), kind, std::string(help), static_cast<double>(value)});
  };
  add("questions_total", Kind::counter, "Questions asked of Redis.", questions_total_);
  add("scripts_total", Kind::counter, "Scripts sent to Redis.", calls_total_);
  add("questions_open", Kind::gauge, "Questions that Redis has not answered yet.", questions_open_);
  add("questions_refused_total", Kind::counter,
      "Questions not asked because Redis was down or too many were open.", refused_unasked_total_);
  add("questions_lost_total", Kind::counter, "Questions lost with their connection.", lost_total_);
  add("given_back_total", Kind::counter, "Late grants given back after their asker was refused.",
      given_back_total_);
  add("healed_total", Kind::counter, "Values put right that were no bucket or had no TTL.", healed_total_);
  add("unknown_format_total", Kind::counter,
      "Questions about values that a newer version wrote, left untouched.", unknown_format_total_);
  add("script_reloads_total", Kind::counter, "Times that Redis had lost the script.", script_reloads_total_);
  std::uint64_t errors = 0;
  for (const auto& [code, count] : errors_) errors += count;
  add("errors_total", Kind::counter, "Scripts answered with an error.", errors);
  troubles_.collect(metrics);
}

}  // namespace allowd::store
