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

// Redis refuses a whole script so, or its first write at the latest: it does not look again once one was
// done.
bool has_done_nothing(ServerError kind) {
  return kind == ServerError::busy || kind == ServerError::no_memory || kind == ServerError::cannot_persist ||
         kind == ServerError::wrong_server;
}

}  // namespace

Shard::Shard(loop::Loop& loop, Options options)
    : loop_(loop),
      max_questions_(options.max_questions),
      max_growing_calls_(options.max_growing_calls),
      max_full_calls_(options.max_full_calls),
      breaker_(options.link.random_seed),
      link_(loop,
            [&] {
              options.link.script = decision_script();
              return std::move(options.link);
            }()),
      heartbeat_(loop, link_, std::move(options.heartbeat)) {
  link_.set_on_up([this] { heartbeat_.begin(); });
  link_.set_reminder([this, reported = std::uint64_t{0}]() mutable {
    const std::uint64_t since = refused_unasked_total_ - std::exchange(reported, refused_unasked_total_);
    return std::to_string(since) + " questions answered by on_failure since the last such line";
  });
}

std::optional<ShardTime> Shard::time(SteadyTime now) const {
  if (!link_.is_up()) return std::nullopt;
  return ShardTime{link_.clock().at(now), link_.clock().uncertainty(now), link_.epoch(),
                   breaker_.state() == Breaker::State::closed};
}

bool Shard::ask(const SharedQuestion& question, std::string_view redis_key) {
  if (!link_.is_up() || questions_open_ >= max_questions_ || !breaker_.lets_through(loop_.now())) {
    refused_unasked_total_ += question.times;
    return false;
  }
  if (breaker_.state() == Breaker::State::probing) probe_ = question.ticket;
  // First what is to be given back: a force that finds nothing left takes nothing.
  if (!owed_.empty() && breaker_.state() == Breaker::State::closed) pay_debts();
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
  if (breaker_.state() != Breaker::State::closed) return false;  // several are no probe
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
  if (breaker_.state() != Breaker::State::closed) drop_waiting();
  pay_debts();
  while (!waiting_.empty() && may_send(*waiting_.front())) {
    Call call = std::move(waiting_.front());
    waiting_.pop_front();
    std::replace(open_.begin(), open_.end(), call.get(), static_cast<ScriptCall*>(nullptr));
    // Everybody may have been answered while it waited; asking now would charge for nothing.
    is_wanted(*call) ? send(std::move(call)) : drop_unsent(*call);
  }
  link_.connection().flush();
}

void Shard::pay_debts() {
  // While the breaker is open one of them may be the probe.
  while (!owed_.empty() && breaker_.lets_through(loop_.now())) {
    const GiveBack debt = std::move(owed_.front());
    owed_.pop_front();
    if (breaker_.state() == Breaker::State::probing) probe_ = kNobody;
    open_call(debt.definition->shape())
        .add(Operation::refund, *debt.definition, debt.redis_key, debt.cost, kNobody);
    ++questions_open_;
    ++given_back_total_;
  }
}

void Shard::drop_waiting() {
  // A probe that nobody waits for any more has failed, whatever comes of it.
  if (probe_ && *probe_ != kNobody && !sink_->is_waiting(*probe_)) {
    probe_.reset();
    breaker_.on_probe_failed(Breaker::Failure::timed_out, loop_.now());
  }
  open_ = {};
  std::deque<Call> kept;
  for (Call& call : std::exchange(waiting_, {}))
    holds_probe(*call) ? kept.push_back(call) : drop_unsent(*call);
  // Whom that has answered may have asked again.
  waiting_.insert(waiting_.begin(), kept.begin(), kept.end());
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
    call->write(connection.outbox(), link_.script_sha(), link_.clock().at(loop_.now()));
    connection.expect([this, call = std::move(call)](const Reply& reply) { on_reply(call, reply); });
  }
  link_.watch_for_stall();
}

bool Shard::has_failed(const Call& call, const Reply& reply) {
  if (reply == nullptr) {
    lost_total_ += call->items().size();
    // All that were lost with one connection are one failure.
    if (std::exchange(lost_at_, loop_.now()) != loop_.now() || holds_probe(*call))
      note_failure(*call, Breaker::Failure::lost, "the connection was lost");
    fail(*call);
    return true;
  }
  if (!is_error(reply)) return false;
  const ErrorReply error = read_error(text_of(reply));
  if (error.kind == ServerError::script_lost) {
    repeat(*call);
    return true;
  }
  count_error(*call, text_of(reply), error.code);
  const bool is_permitted = error.kind != ServerError::not_permitted;
  note_failure(*call, is_permitted ? Breaker::Failure::refused : Breaker::Failure::not_permitted,
               text_of(reply));
  fail(*call, has_done_nothing(error.kind));
  if (error.kind == ServerError::wrong_server) {
    link_.drop({Error::Code::retry_later, std::string(text_of(reply))});
  }
  return true;
}

void Shard::on_reply(const Call& call, const Reply& reply) {
  if (has_failed(call, reply)) return;
  if (!call->fits(*reply)) {
    note_failure(*call, Breaker::Failure::refused, "a malformed answer");
    fail(*call);
    return link_.drop({Error::Code::system, "the script's answer is malformed"});
  }
  healed_total_ += ScriptCall::healed(*reply);
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
    note_failure(*call, Breaker::Failure::refused, "a malformed answer");
    fail(*call);
    return link_.drop({Error::Code::system, "the answer to EXEC is malformed"});
  }
  settle(*call, answers);
}

void Shard::settle(const ScriptCall& call, const std::vector<SharedAnswer>& answers) {
  std::string& reported = reported_errors_[shape_of(call)];
  if (!reported.empty()) spdlog::info("redis {}: {} succeeds again", link_.name(), name_of(call.algorithm()));
  reported.clear();
  note_answer(call);
  for (std::size_t i = 0; i < call.items().size(); ++i) {
    const ScriptCall::Item& item = call.items()[i];
    const SharedAnswer& answer = answers[i];
    if (answer.status == Answer::Status::promised) {
      repeat(call, item);
      continue;
    }
    --questions_open_;
    end_probe(item);
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
      if (!is_wanted) return fail(call, true);  // they were asked as one, and expire as one
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
  if (!link_.is_up() || !is_wanted || item.was_repeated) return answer_failed(item, true);
  open_call(call.definition(item).shape())
      .add(item.operation, call.definition(item), call.redis_key(item), item.cost, item.ticket, item.times,
           true);
}

void Shard::answer_failed(const ScriptCall::Item& item, bool is_unasked) {
  --questions_open_;
  end_probe(item);
  if (item.ticket == kNobody) return;
  SharedAnswer failed;
  failed.is_unasked = is_unasked;
  static_cast<void>(sink_->on_answer(item.ticket, failed, loop_.now()));
}

void Shard::fail(const ScriptCall& call, bool is_unasked) {
  for (const ScriptCall::Item& item : call.items()) answer_failed(item, is_unasked);
}

void Shard::drop_unsent(const ScriptCall& call) {
  for (const ScriptCall::Item& item : call.items()) {
    if (item.ticket == kNobody) {
      owe(call, item, item.cost);
      --given_back_total_;
    }
    answer_failed(item, true);
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

bool Shard::holds_probe(const ScriptCall& call) const {
  return probe_ && std::any_of(call.items().begin(), call.items().end(),
                               [this](const ScriptCall::Item& item) { return item.ticket == *probe_; });
}

void Shard::note_failure(const ScriptCall& call, Breaker::Failure why, std::string_view text) {
  if (holds_probe(call)) return breaker_.on_probe_failed(why, loop_.now());
  // Where nobody waits any more, that has been counted.
  if (is_wanted(call) && breaker_.on_failure(why, loop_.now())) report_opened(text);
}

void Shard::note_expired(limiter::Micros waited, SteadyTime now) {
  // While the link is down nobody waits for the server.
  if (link_.is_up() && breaker_.on_timeout(waited, now)) report_opened("no answer in time");
}

void Shard::report_opened(std::string_view why) const {
  spdlog::warn("redis {}: {} failures in a row, the last: {}; on_failure answers at once but for probes",
               link_.name(), Breaker::kFailuresToOpen, why);
}

void Shard::note_answer(const ScriptCall& call) {
  if (breaker_.is_untroubled() || !is_wanted(call)) return;
  if (breaker_.state() != Breaker::State::closed)
    spdlog::info("redis {}: answers in time again", link_.name());
  breaker_.on_success();
}

void Shard::end_probe(const ScriptCall::Item& item) {
  if (!probe_ || item.ticket != *probe_) return;
  probe_.reset();
  breaker_.on_probe_failed(Breaker::Failure::timed_out, loop_.now());
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
  return "url state scripts questions_open clock_uncertainty_us breaker agents counter\n";
}

std::string Shard::describe() const {
  std::string text = link_.url();
  text += link_.is_up() ? " up " : " down ";
  text += std::to_string(calls_total_) + " " + std::to_string(questions_open_) + " " +
          std::to_string(link_.clock().uncertainty(loop_.now()).count());
  text += " " + std::string(name_of(breaker_.state()));
  text += " " + (agents() ? std::to_string(*agents()) : "unknown");
  text += !link_.is_up() ? " unknown\n" : link_.counts_without_script() ? " multi\n" : " script\n";
  return text;
}

limiter::Micros Shard::next_probe_in(SteadyTime now) const {
  // An attempt to connect that is due is no question that would be asked.
  return link_.is_up() ? breaker_.next_probe_in(now)
                       : std::max(link_.next_attempt_in(now), limiter::Micros{2});
}

bool Shard::is_answering() const {
  return link_.is_up() && breaker_.next_probe_in(loop_.now()) <= Breaker::kProbeIsDue;
}

void Shard::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  link_.collect(metrics);
  metrics.push_back({"agents_known", Kind::gauge,
                     "Agents that share Redis, as it was counted last; 0: unknown.",
                     static_cast<double>(agents().value_or(0))});
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
  add("healed_total", Kind::counter, "Values put right that were no bucket or had no TTL.",
      healed_total_ + heartbeat_.healed());
  add("unknown_format_total", Kind::counter,
      "Questions about values that a newer version wrote, left untouched.", unknown_format_total_);
  add("breaker_open", Kind::gauge,
      "Redis servers that are not asked but for probes, since they kept failing.",
      breaker_.state() == Breaker::State::closed ? 0 : 1);
  add("breaker_opens_total", Kind::counter, "Times that this began.", breaker_.opens());
  add("script_reloads_total", Kind::counter, "Times that Redis had lost the script.", script_reloads_total_);
  std::uint64_t errors = 0;
  for (const auto& [code, count] : errors_) errors += count;
  add("errors_total", Kind::counter, "Scripts answered with an error.", errors);
}

}  // namespace allowd::store
