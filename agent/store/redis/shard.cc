// SPDX-License-Identifier: MIT
#include "agent/store/redis/shard.h"

#include <algorithm>
#include <utility>

#include "agent/log/log.h"
#include "agent/store/redis/codec/bucket_call.h"
#include "agent/store/redis/codec/counter_call.h"
#include "agent/store/redis/codec/script.h"
#include "protocol/quoted.h"

namespace allowd::store {
namespace {

using limiter::Operation;

constexpr limiter::Micros kResetPatience = std::chrono::seconds(1);
constexpr limiter::Micros kConnectPatience = std::chrono::milliseconds(500);

}  // namespace

Shard::Shard(loop::Loop& loop, Options options)
    : loop_(loop),
      max_questions_(options.max_questions),
      max_growing_calls_(options.max_growing_calls),
      max_full_calls_(options.max_full_calls),
      router_(options.router),
      troubles_(options.link.random_seed),
      breaker_(options.link.random_seed),
      link_(loop,
            [&] {
              options.link.script = decision_script();
              return std::move(options.link);
            }()),
      heartbeat_(loop, link_, std::move(options.heartbeat)),
      open_(options.groups) {
  link_.set_on_up([this] { heartbeat_.begin(); });
  link_.set_on_other_server([this] { forget_debts(); });
  link_.set_reminder([this, reported = std::uint64_t{0}]() mutable {
    const std::uint64_t since = refused_unasked_total_ - std::exchange(reported, refused_unasked_total_);
    return std::to_string(since) + " questions answered by on_failure since the last such line";
  });
}

void Shard::start() {
  if (router_ != nullptr) wait_until_ = loop_.now() + kConnectPatience;
  link_.start();
}

std::optional<ShardTime> Shard::time(SteadyTime now) const {
  if (!link_.is_up()) return std::nullopt;
  return ShardTime{link_.clock().at(now), link_.clock().uncertainty(now), link_.epoch(),
                   breaker_.state() == Breaker::State::closed};
}

bool Shard::ask(const SharedQuestion& question, std::string_view redis_key) {
  const auto shape = static_cast<std::size_t>(question.definition->shape());
  if (!takes_questions() || questions_open_ >= max_questions_ || troubles_.is_forbidden(shape, loop_.now()) ||
      !breaker_.lets_through(loop_.now())) {
    refused_unasked_total_ += question.times;
    return false;
  }
  if (breaker_.state() == Breaker::State::probing) probe_ = question.ticket;
  // First what is to be given back: a force that finds nothing left takes nothing.
  if (!owed_.empty() && breaker_.state() == Breaker::State::closed) pay_debts();
  open_call(group_of(question), question.definition->shape())
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
  if (!takes_questions() || questions_open_ + questions.size() > max_questions_) return false;
  if (breaker_.state() != Breaker::State::closed) return false;  // several are no probe
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
  waiting_.push_back({std::move(call), group_of(questions.front())});
  return true;
}

ScriptCall& Shard::open_call(std::uint32_t group, limiter::Definition::Shape shape) {
  ScriptCall*& open = open_[group][static_cast<std::size_t>(shape)];
  if (open == nullptr || open->is_full()) {
    waiting_.push_back({ScriptCall::make(shape), group});
    open = waiting_.back().call.get();
  }
  return *open;
}

void Shard::close(const Batch& batch) {
  OpenCalls& open = open_[batch.group];
  std::replace(open.begin(), open.end(), batch.call.get(), static_cast<ScriptCall*>(nullptr));
}

bool Shard::is_wanted(const ScriptCall::Item& item) const {
  return item.ticket == kNobody || sink_->is_waiting(item.ticket);
}

bool Shard::is_wanted(const ScriptCall& call) const {
  return std::any_of(call.items().begin(), call.items().end(),
                     [this](const ScriptCall::Item& item) { return is_wanted(item); });
}

void Shard::flush() {
  if (!link_.is_up()) {
    first_wave_ += waves_.size();
    waves_.clear();
    return drop_unconnected();
  }
  if (breaker_.state() != Breaker::State::closed) drop_waiting();
  pay_debts();
  send_waiting();
  link_.connection().flush();
}

void Shard::drop_unconnected() {
  const bool is_waited_for = takes_questions();
  std::deque<Batch> kept;
  for (Batch& batch : std::exchange(waiting_, {})) {
    if (is_waited_for && is_wanted(*batch.call)) {
      kept.push_back(std::move(batch));
      continue;
    }
    close(batch);
    drop_unsent(batch);
  }
  // Whom that has answered may have asked again.
  waiting_.insert(waiting_.begin(), kept.begin(), kept.end());
}

void Shard::drop_waiting() {
  // A probe that nobody waits for any more has failed, whatever comes of it.
  if (probe_ && *probe_ != kNobody && !sink_->is_waiting(*probe_)) {
    probe_.reset();
    note_trouble(kNoAnswer);
    breaker_.on_probe_failed(Breaker::Failure::timed_out, loop_.now());
  }
  std::fill(open_.begin(), open_.end(), OpenCalls{});
  std::deque<Batch> kept;
  for (Batch& batch : std::exchange(waiting_, {}))
    holds_probe(*batch.call) ? kept.push_back(std::move(batch)) : drop_unsent(batch);
  // Whom that has answered may have asked again.
  waiting_.insert(waiting_.begin(), kept.begin(), kept.end());
}

void Shard::send_waiting() {
  std::size_t sent = 0;
  while (!waiting_.empty() && may_send(waiting_.front())) {
    Batch batch = std::move(waiting_.front());
    waiting_.pop_front();
    close(batch);
    // Everybody may have been answered while it waited; asking now would charge for nothing.
    if (!is_wanted(*batch.call)) {
      drop_unsent(batch);
      continue;
    }
    batch.wave = first_wave_ + waves_.size();
    send(std::move(batch));
    ++sent;
  }
  if (open_.size() > 1 && sent > 0) waves_.push_back(sent);
}

std::size_t Shard::in_flight() {
  return open_.size() == 1 ? link_.connection().open_commands() : waves_.size();
}

bool Shard::may_send(const Batch& batch) {
  // What is full gains nothing by waiting.
  return in_flight() < (batch.call->is_full() ? max_full_calls_ : max_growing_calls_);
}

void Shard::send(Batch batch) {
  Connection& connection = link_.connection();
  ++calls_total_;
  batch.incarnation = link_.incarnation();
  note_debts_sent(*batch.call);
  // In a Cluster each command of a transaction may be redirected by a reply of its own: the script says it
  // once.
  const bool may_transact = router_ == nullptr && link_.counts_without_script();
  auto* counters = may_transact ? dynamic_cast<CounterCall*>(batch.call.get()) : nullptr;
  if (counters != nullptr && !counters->has_repeated()) {
    const std::size_t before =
        counters->write_transaction(connection.outbox(), link_.clock().at(loop_.now()));
    connection.expect([this, batch = std::move(batch)](const Reply& reply) { on_transaction(batch, reply); },
                      before);
  } else {
    if (batch.is_asking) send_asking();
    batch.call->write(connection.outbox(), link_.script_sha(), link_.clock().at(loop_.now()),
                      link_.scripts_tell_time());
    connection.expect([this, batch = std::move(batch)](const Reply& reply) {
      end_of_wave(batch);
      on_reply(batch, reply);
    });
  }
  link_.watch_for_stall();
}

void Shard::send_asking() {
  write_command(link_.connection().outbox(), {"ASKING"});
  link_.connection().expect([this](const Reply& reply) {
    if (reply == nullptr) return;
    const bool lacks_it = is_error(reply) && read_error(text_of(reply)).kind == ServerError::not_permitted;
    if (std::exchange(lacks_asking_, lacks_it) || !lacks_it) return;
    log::warn("redis {}: its user lacks +asking; on_failure decides about keys whose slot is moving",
              link_.name());
  });
}

void Shard::end_of_wave(const Batch& batch) {
  // Of a connection that was given up, waves do not count any more.
  if (batch.wave < first_wave_ || waves_.empty()) return;
  --waves_[batch.wave - first_wave_];
  while (!waves_.empty() && waves_.front() == 0) {
    waves_.pop_front();
    ++first_wave_;
  }
}

void Shard::add_again(const Batch& from, const ScriptCall::Item& item, bool is_alone, bool is_asking) {
  const limiter::Definition::Shape shape = from.call->definition(item).shape();
  if (!is_alone) return open_call(from.group, shape).add_again(*from.call, item);
  waiting_.push_back({ScriptCall::make(shape), from.group, is_asking});
  waiting_.back().call->add_again(*from.call, item);
}

bool Shard::add_together_again(const Batch& from, bool is_asking, bool is_redirected) {
  auto call = std::make_shared<BucketCall>();
  call->decide_together();
  for (ScriptCall::Item item : from.call->items()) {
    if (!is_wanted(item)) return false;  // they were asked as one, and expire as one
    is_redirected ? static_cast<void>(++item.redirections) : static_cast<void>(item.was_repeated = true);
    call->add_again(*from.call, item);
  }
  waiting_.push_back({std::move(call), from.group, is_asking});
  return true;
}

void Shard::take_over(const Batch& batch, Passage passage) {
  if (!link_.is_up()) wait_until_ = std::max(wait_until_, loop_.now() + kConnectPatience);
  const ScriptCall& call = *batch.call;
  const bool is_asking = passage == Passage::asking;
  questions_open_ += call.items().size();
  const bool has_room = questions_open_ <= max_questions_;
  if (call.is_together()) {
    const bool may_go =
        has_room && passage != Passage::one_by_one && call.items().front().redirections < kMostRedirections;
    if (!may_go || !add_together_again(batch, is_asking, true)) fail(call, true);
    return;
  }
  for (ScriptCall::Item item : call.items()) {
    if (!has_room || !is_wanted(item) || item.redirections >= kMostRedirections) {
      answer_failed(item, true);
      continue;
    }
    ++item.redirections;
    add_again(batch, item, passage != Passage::as_it_is, is_asking);
  }
}

void Shard::refuse(const Batch& batch) {
  questions_open_ += batch.call->items().size();
  fail(*batch.call, true);
}

void Shard::drop_unsent(const Batch& batch) {
  for (const ScriptCall::Item& item : batch.call->items()) {
    if (item.ticket != kNobody) {
      answer_failed(item, true);
      continue;
    }
    --questions_open_;
    end_probe(item);
    owe_unsent(batch, item, item.cost);
  }
}

void Shard::reset(std::string_view redis_key, bool is_asking, std::function<void(const Reply&)> done) {
  if (!link_.is_up()) return done(nullptr);
  Connection& connection = link_.connection();
  flush();  // what was asked before is decided before
  const std::uint64_t number = ++last_reset_;
  Reset& reset = resets_.try_emplace(number, Reset{loop::Timer(loop_), std::move(done)}).first->second;
  reset.patience.once(kResetPatience, [&reset] { std::exchange(reset.done, nullptr)(nullptr); });
  if (is_asking) write_command(connection.outbox(), {"ASKING"});
  write_command(connection.outbox(), {"DEL", redis_key});
  connection.expect(
      [this, number](const Reply& reply) {
        const auto answered = resets_.extract(number);
        if (answered.mapped().done) answered.mapped().done(reply);
      },
      is_asking ? 1 : 0);
  connection.flush();
  link_.watch_for_stall();
}

void Shard::ask_about_nothing(std::string_view redis_key, std::function<void(const Reply&)> done) {
  Connection& connection = link_.connection();
  BucketCall::write_empty(connection.outbox(), link_.script_sha(), redis_key);
  connection.expect([done = std::move(done)](const Reply& reply) { done(reply); });
  connection.flush();
  link_.watch_for_stall();
}

std::string_view Shard::heading() {
  return "url state scripts questions_open clock_uncertainty_us breaker agents counter reason_age_us "
         "reason\n";
}

std::string Shard::describe() const {
  std::string text = link_.url();
  text += link_.is_up() ? " up " : " down ";
  text += std::to_string(calls_total_) + " " + std::to_string(questions_open_) + " " +
          std::to_string(link_.clock().uncertainty(loop_.now()).count());
  text += " " + std::string(name_of(breaker_.state()));
  text += " " + (agents() ? std::to_string(*agents()) : "unknown");
  text += !link_.is_up()                                        ? " unknown "
          : router_ == nullptr && link_.counts_without_script() ? " multi "
                                                                : " script ";
  const auto age = [&](SteadyTime since) { return std::to_string((loop_.now() - since).count()) + " "; };
  if (!link_.is_up()) {
    text += age(link_.why_down_at()) + protocol::quoted(link_.why_down());
  } else if (breaker_.state() != Breaker::State::closed) {
    text += age(troubled_at_) + protocol::quoted(last_trouble_);
  } else {
    text += "- -";
  }
  return text + "\n";
}

std::string Shard::describe_unnamed(std::string_view urls, limiter::Micros reason_age,
                                    std::string_view reason) {
  const std::string why =
      reason.empty() ? "- -" : std::to_string(reason_age.count()) + " " + protocol::quoted(reason);
  return std::string(urls) + " down 0 0 0 closed unknown unknown " + why + "\n";
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
  add("give_backs_dropped_total", Kind::counter,
      "Late grants not given back, since whoever keeps their keys now need not have charged them.",
      give_backs_dropped_total_);
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
  troubles_.collect(metrics);
}

}  // namespace allowd::store
