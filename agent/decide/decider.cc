// SPDX-License-Identifier: MIT
#include "agent/decide/decider.h"

#include <algorithm>
#include <utility>

#include "protocol/quoted.h"

namespace allowd::decide {
namespace {

using limiter::Operation;
using protocol::ErrorCode;
using protocol::Source;

constexpr std::string_view kOverflowTier = "overflow";

protocol::Verdict to_wire(limiter::Verdict verdict) {
  switch (verdict) {
    case limiter::Verdict::ok: return protocol::Verdict::ok;
    case limiter::Verdict::limited: return protocol::Verdict::limited;
    case limiter::Verdict::never: return protocol::Verdict::never;
  }
  return protocol::Verdict::limited;
}

constexpr std::uint64_t to_unsigned(std::int64_t value) { return static_cast<std::uint64_t>(value); }

protocol::Decision to_wire(const limiter::Decision& decision, Source source, std::string_view tier) {
  return {.allowed = decision.verdict == limiter::Verdict::ok,
          .limit = to_unsigned(decision.capacity),
          .remaining = to_unsigned(decision.remaining),
          .retry_after_us = decision.retry_after.count(),
          .reset_after_us = to_unsigned(decision.reset_after.count()),
          .verdict = to_wire(decision.verdict),
          .source = source,
          .tier = tier,
          .window_us = to_unsigned(decision.window.count()),
          .more_after_us = to_unsigned(decision.more_after.count())};
}

Outcome refused(ErrorCode code, std::string reason) {
  return {Outcome::Kind::refused, {}, code, std::move(reason)};
}

// Slots are used again; the generation tells a late answer's query from its successor.
constexpr std::uint64_t make_ticket(DeadlineQueue::Slot slot, std::uint32_t generation) {
  return std::uint64_t{generation} << 32 | slot;
}
constexpr DeadlineQueue::Slot slot_of(std::uint64_t ticket) {
  return static_cast<DeadlineQueue::Slot>(ticket);
}
constexpr std::uint32_t generation_of(std::uint64_t ticket) {
  return static_cast<std::uint32_t>(ticket >> 32);
}

}  // namespace

Decider::Decider(store::Store& store, LimitTable& limits, stats::Registry& registry)
    : store_(store), is_local_(store.is_local()), limits_(limits), registry_(registry) {
  store_.attach(*this);
}

Outcome Decider::ask(Operation operation, const protocol::Query& query, SteadyTime now, Asker& asker,
                     std::uint64_t msgid) {
  if (query.defined_inline) {
    auto limit = limits_.find_or_parse(*query.defined_inline);
    if (!limit) return refused(ErrorCode::bad_request, std::move(limit.error().message));
    return ask_limit(*limit, operation, query, now, asker, msgid);
  }
  const LimitPtr* limit = limits_.find(query.limit);
  if (limit == nullptr) {
    return refused(ErrorCode::unknown_limit, "no limit is named " + protocol::quoted(query.limit));
  }
  return ask_limit(*limit, operation, query, now, asker, msgid);
}

Outcome Decider::ask_limit(const LimitPtr& limit, Operation operation, const protocol::Query& query,
                           SteadyTime now, Asker& asker, std::uint64_t msgid) {
  const store::Question question{operation, &limit->bucket, limit->tag, query.key, query.cost, 0};
  if (is_local_) {
    Outcome outcome{Outcome::Kind::decided, from_store(store_.ask(question, now))};
    note(outcome.decision, *limit);
    return outcome;
  }
  if (!limit->bucket.can_hold(query.cost)) {
    // Can never pass: no trip to the store, so its true level is not known here.
    const auto decision = limit->bucket.describe(0, query.cost, limiter::Verdict::never);
    return decided_now(to_wire(decision, Source::local, ""), *limit);
  }
  limiter::Micros wait = limit->deadline;
  if (query.deadline_us) wait = limiter::Micros{*query.deadline_us};
  wait = std::min(wait, kLongestDeadline);
  if (wait.count() == 0) return decided_now(by_policy(*limit, now), *limit);
  return start_waiting(question, limit, wait, now, asker, msgid);
}

Outcome Decider::start_waiting(const store::Question& question, const LimitPtr& limit, limiter::Micros wait,
                               SteadyTime now, Asker& asker, std::uint64_t msgid) {
  const DeadlineQueue::Slot slot = take_slot();
  store::Question asked = question;
  asked.ticket = make_ticket(slot, open_[slot].generation);
  const store::Answer answer = store_.ask(asked, now);
  if (answer.status != store::Answer::Status::promised) {
    release(slot);
    const bool is_decided = answer.status == store::Answer::Status::decided;
    return decided_now(is_decided ? from_store(answer) : by_policy(*limit, now), *limit);
  }
  Open& open = open_[slot];  // not before: a store may settle other queries while it is asked
  open.asker = &asker;
  open.msgid = msgid;
  open.limit = limit;
  open.asked_at = now;
  open.fate = Fate::delivered;
  deadlines_.push(slot, now + wait);
  return {};
}

DeadlineQueue::Slot Decider::take_slot() {
  if (free_.empty()) {
    open_.emplace_back();
    return static_cast<DeadlineQueue::Slot>(open_.size() - 1);
  }
  const DeadlineQueue::Slot slot = free_.back();
  free_.pop_back();
  return slot;
}

void Decider::release(DeadlineQueue::Slot slot) {
  Open& open = open_[slot];
  open.asker = nullptr;
  open.limit.reset();
  ++open.generation;
  free_.push_back(slot);
}

bool Decider::is_waiting(std::uint64_t ticket) const {
  const Open& open = open_[slot_of(ticket)];
  return open.generation == generation_of(ticket) && open.asker != nullptr;
}

store::AnswerSink::Fate Decider::on_answer(std::uint64_t ticket, const store::Answer& answer,
                                           SteadyTime now) {
  const DeadlineQueue::Slot slot = slot_of(ticket);
  Open& open = open_[slot];
  if (open.asker == nullptr) {
    if (answer.status == store::Answer::Status::decided) ++late_answers_total_;
    const Fate fate = open.fate;
    release(slot);
    return fate;
  }
  const LimitPtr limit = open.limit;
  const bool is_decided = answer.status == store::Answer::Status::decided;
  const auto decision = is_decided ? from_store(answer) : by_policy(*limit, now);
  Asker& asker = *open.asker;
  const std::uint64_t msgid = open.msgid;
  registry_.latency(decision.source).record((now - open.asked_at).count());
  count(decision, *limit);
  deadlines_.remove(slot);
  release(slot);
  asker.on_decision(msgid, decision);
  return Fate::delivered;
}

void Decider::expire(SteadyTime now) {
  while (!deadlines_.is_empty() && deadlines_.next_deadline() <= now) expire_next(now);
}

void Decider::expire_all(SteadyTime now) {
  while (!deadlines_.is_empty()) expire_next(now);
}

void Decider::expire_next(SteadyTime now) {
  const DeadlineQueue::Slot slot = deadlines_.next();
  deadlines_.remove(slot);
  Open& open = open_[slot];
  const auto decision = by_policy(*open.limit, now);
  open.fate = decision.allowed ? Fate::allowed_meanwhile : Fate::refused_meanwhile;
  ++expired_total_;
  registry_.latency(decision.source).record((now - open.asked_at).count());
  count(decision, *open.limit);
  const std::uint64_t msgid = open.msgid;
  std::exchange(open.asker, nullptr)->on_decision(msgid, decision);
}

std::optional<SteadyTime> Decider::next_deadline() const {
  if (deadlines_.is_empty()) return std::nullopt;
  return deadlines_.next_deadline();
}

void Decider::end_turn(SteadyTime start, SteadyTime end) {
  for (std::size_t i = 0; i < protocol::kSources; ++i) {
    if (decided_this_turn_[i] == 0) continue;
    registry_.latency(static_cast<Source>(i))
        .record((end - start).count(), std::exchange(decided_this_turn_[i], 0));
  }
}

protocol::Decision Decider::from_store(const store::Answer& answer) const {
  const Source source = is_local_ ? Source::local : Source::store;
  return to_wire(answer.decision, source, answer.by_overflow ? kOverflowTier : std::string_view());
}

protocol::Decision Decider::by_policy(const Limit& limit, SteadyTime now) const {
  const std::uint64_t capacity = to_unsigned(limit.bucket.burst());
  protocol::Decision decision{
      .limit = capacity, .source = Source::fallback, .window_us = to_unsigned(limit.bucket.window().count())};
  switch (limit.on_failure) {
    case config::FailurePolicy::allow:
      decision.allowed = true;
      decision.remaining = capacity;
      decision.verdict = protocol::Verdict::ok;
      break;
    case config::FailurePolicy::deny:
      decision.verdict = protocol::Verdict::unavailable;
      decision.retry_after_us = store_.next_probe_in(now).count();
      break;
  }
  return decision;
}

Outcome Decider::decided_now(const protocol::Decision& decision, const Limit& limit) {
  note(decision, limit);
  return {Outcome::Kind::decided, decision};
}

void Decider::note(const protocol::Decision& decision, const Limit& limit) {
  count(decision, limit);
  ++decided_this_turn_[static_cast<std::size_t>(decision.source)];
}

void Decider::count(const protocol::Decision& decision, const Limit& limit) {
  (decision.tier == kOverflowTier ? limit.overflows : limit.decisions)
      ->add(decision.verdict, decision.source);
}

void Decider::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  const auto number = [](std::size_t value) { return static_cast<double>(value); };
  metrics.push_back(
      {"queries_open", Kind::gauge, "Queries that wait for the store.", number(deadlines_.size())});
  metrics.push_back({"queries_expired_total", Kind::counter,
                     "Queries that on_failure answered because the store took too long.",
                     number(expired_total_)});
  metrics.push_back({"late_answers_total", Kind::counter, "Answers of the store to queries answered before.",
                     number(late_answers_total_)});
}

}  // namespace allowd::decide
