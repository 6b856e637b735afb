// SPDX-License-Identifier: MIT
#include "agent/decide/decider.h"

#include <algorithm>
#include <utility>

#include "agent/log/log.h"
#include "protocol/quoted.h"

namespace allowd::decide {
namespace {

using limiter::Operation;
using protocol::ErrorCode;
using protocol::Source;

// The wire's verdicts begin with the limiter's.
constexpr protocol::Verdict to_wire(limiter::Verdict verdict) {
  return static_cast<protocol::Verdict>(verdict);
}
static_assert(to_wire(limiter::Verdict::ok) == protocol::Verdict::ok);
static_assert(to_wire(limiter::Verdict::limited) == protocol::Verdict::limited);
static_assert(to_wire(limiter::Verdict::never) == protocol::Verdict::never);
static_assert(to_wire(limiter::Verdict::shadow) == protocol::Verdict::shadow);

Source source_of(const store::Answer& answer) { return answer.is_local ? Source::local : Source::store; }

constexpr std::uint64_t to_unsigned(std::int64_t value) { return static_cast<std::uint64_t>(value); }

protocol::Decision to_wire(const limiter::Decision& decision, Source source, std::string_view tier) {
  const bool is_refused =
      decision.verdict == limiter::Verdict::limited || decision.verdict == limiter::Verdict::never;
  return {.allowed = !is_refused,
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

Found find_in(const LimitPtr& limit, const protocol::Query& query) {
  return {&limit, &limit->rule_for(query.key, query.plan), limit->hash_of(query.key)};
}

}  // namespace

Decider::Decider(store::Store& store, store::Store& host, LimitTable& limits, stats::Registry& registry,
                 std::size_t max_shares)
    : store_(store),
      host_(host),
      is_local_(store.is_local()),
      limits_(limits),
      registry_(registry),
      max_shares_(max_shares) {
  store_.attach(*this);
}

inline protocol::Decision Decider::by_store(const Limit& limit, const Rule& rule, const store::Answer& answer,
                                            Source source) {
  if (answer.by_overflow) {
    // A key whose override only watches is refused by nothing that its limit's other keys share.
    limiter::Decision shared = answer.decision;
    rule.definition->judge(shared);
    limit.overflows().add(to_wire(shared.verdict), source);
    return to_wire(shared, source, kOverflowTier);
  }
  const std::size_t tier = answer.decision.tier;
  rule.decisions[tier]->add(to_wire(answer.decision.verdict), source);
  return to_wire(answer.decision, source, rule.definition->tiers()[tier].name);
}

Outcome Decider::ask(Operation operation, const protocol::Query& query, SteadyTime now, Asker& asker,
                     std::uint64_t msgid) {
  Found found;
  return ask(operation, query, found, now, asker, msgid);
}

Outcome Decider::ask(Operation operation, const protocol::Query& query, Found& found, SteadyTime now,
                     Asker& asker, std::uint64_t msgid) {
  now_ = now;
  if (found.limit == nullptr) {
    if (query.defined_inline) return ask_inline_limit(operation, query, now, asker, msgid);
    const LimitPtr* limit = limits_.find(query.limit);
    if (limit == nullptr) return unknown_limit(query.limit);
    found = find_in(*limit, query);
  }
  return ask_found(found, operation, query, now, asker, msgid);
}

Outcome Decider::ask_inline_limit(Operation operation, const protocol::Query& query, SteadyTime now,
                                  Asker& asker, std::uint64_t msgid) {
  auto limit = limits_.find_or_parse(*query.defined_inline);
  if (!limit) return Outcome(ErrorCode::bad_request, std::move(limit.error().message));
  return ask_found(find_in(*limit, query), operation, query, now, asker, msgid);
}

Outcome Decider::unknown_limit(std::string_view name) {
  ++unknown_limits_total_;
  if (unknown_names_.size() < kMaxUnknownNames && unknown_names_.emplace(name).second) {
    log::warn("no limit is named {}; its queries are answered with an error", protocol::quoted(name));
  }
  return Outcome(ErrorCode::unknown_limit, "no limit is named " + protocol::quoted(name));
}

inline Outcome Decider::ask_found(const Found& found, Operation operation, const protocol::Query& query,
                                  SteadyTime now, Asker& asker, std::uint64_t msgid) {
  const LimitPtr& limit = *found.limit;
  if (operation == Operation::refund && !limit->may_refund()) {
    return Outcome(ErrorCode::forbidden, "the limit takes no refunds");
  }
  if (query.is_forced && operation == Operation::take) operation = Operation::force;
  if (!query.plan.empty() && !limit->has_plan(query.plan)) ++unknown_plans_total_;
  const limiter::Micros wait = query.deadline_us ? limiter::Micros{*query.deadline_us} : limit->deadline();
  return ask_hashed({limit, found.rule, operation, query.cost}, {query.key, found.hash}, wait, now, asker,
                    msgid);
}

Outcome Decider::ask(SubjectView subject, std::string_view key, limiter::Micros wait, SteadyTime now,
                     Asker& asker, std::uint64_t msgid) {
  return ask_hashed(subject, {key, subject.limit->hash_of(key)}, wait, now, asker, msgid);
}

inline Outcome Decider::ask_hashed(const SubjectView& subject, const HashedKey& key, limiter::Micros wait,
                                   SteadyTime now, Asker& asker, std::uint64_t msgid) {
  const Limit& limit = *subject.limit;
  const Rule& rule = *subject.rule;
  const bool is_usual = rule.kind == config::Override::Kind::definition &&
                        (is_kept_here(limit) || (!can_never_pass(subject) && wait.count() > 0 && !shares_));
  if (!is_usual) return ask_rarely(subject, key, wait, now, asker, msgid);
  store::Question question = question_about(subject, key);
  if (is_kept_here(limit)) {
    store::Store& store = is_local_ ? store_ : host_;
    return decided_now(
        limit, key, now, [&]() __attribute__((always_inline)) {
          return by_store(limit, rule, store.ask(question, now), Source::local);
        });
  }
  question.deadline = now + std::min(wait, kLongestDeadline);
  question.lease = rule.lease;
  question.ticket = next_ticket_;
  return ask_store(subject, key, question, now, asker, msgid);
}

Outcome Decider::ask_rarely(const SubjectView& subject, const HashedKey& key, limiter::Micros wait,
                            SteadyTime now, Asker& asker, std::uint64_t msgid) {
  const Limit& limit = *subject.limit;
  const Rule& rule = *subject.rule;
  if (rule.kind != config::Override::Kind::definition) {
    return decided_now(limit, key, now, [&] { return by_override(limit, rule); });
  }
  if (can_never_pass(subject)) {
    // No trip to the store, so its true level is not known here.
    const store::Answer never{
        store::Answer::Status::decided, false,
        rule.asked().apply_to_nothing(subject.operation, subject.cost, limiter::TimePoint{})};
    return decided_now(limit, key, now, [&] { return by_store(limit, rule, never, Source::local); });
  }
  wait = std::min(wait, kLongestDeadline);
  store::Question question = question_about(subject, key);
  question.deadline = now + wait;
  question.lease = rule.lease;
  if (wait.count() == 0) {
    return decided_now(limit, key, now,
                       [&] { return by_policy(subject, key, store_.shard_of(question), now); });
  }
  if (shares_ && limit.on_failure() == config::FailurePolicy::local) {
    debit_shares(subject, key, now);
    if (const auto refusal = hold_by_shares(question, now)) {
      return decided_now(limit, key, now,
                         [&] { return by_own_share(subject, *refusal, store_.shard_of(question), now); });
    }
  }
  question.ticket = next_ticket_;
  return ask_store(subject, key, question, now, asker, msgid);
}

inline Outcome Decider::ask_store(const SubjectView& subject, const HashedKey& key,
                                  const store::Question& question, SteadyTime now, Asker& asker,
                                  std::uint64_t msgid) {
  const store::Answer answer = store_.ask(question, now);
  if (answer.status == store::Answer::Status::promised) {
    occupy(take_slot(), subject, key, question, now, asker, msgid);
    return {};
  }
  const bool is_decided = answer.status == store::Answer::Status::decided;
  return decided_now(
      *subject.limit, key, now, [&]() __attribute__((always_inline)) {
        return is_decided ? by_store(*subject.limit, *subject.rule, answer, source_of(answer))
                          : by_policy(subject, key, store_.shard_of(question), now);
      });
}

void Decider::occupy(DeadlineQueue::Slot slot, SubjectView subject, const HashedKey& key,
                     const store::Question& question, SteadyTime now, Asker& asker, std::uint64_t msgid) {
  Open& open = open_[slot];
  open.asker = &asker;
  open.msgid = msgid;
  open.limit = subject.limit;
  open.rule = subject.rule;
  open.operation = subject.operation;
  open.cost = subject.cost;
  open.shard = store_.shard_of(question);
  open.asked_at = now;
  open.hot = registry_.hot_keys().count_query({key.hash.low, subject.limit->label(), key.key}, now);
  open.fate = Fate::delivered;
  if (subject.limit->on_failure() == config::FailurePolicy::local) {
    open.key = key.key;
    open.hash = key.hash;
  }
  deadlines_.push(slot, question.deadline);
}

void Decider::choose_next_ticket() {
  next_ticket_ = free_.empty() ? make_ticket(static_cast<DeadlineQueue::Slot>(open_.size()), 0)
                               : make_ticket(free_.back(), open_[free_.back()].generation);
}

DeadlineQueue::Slot Decider::take_slot() {
  const DeadlineQueue::Slot slot = slot_of(next_ticket_);
  if (free_.empty()) {
    open_.emplace_back();
  } else {
    free_.pop_back();
  }
  choose_next_ticket();
  return slot;
}

void Decider::release(DeadlineQueue::Slot slot) {
  Open& open = open_[slot];
  open.asker = nullptr;
  open.debit = 0;
  open.limit.reset();
  ++open.generation;
  free_.push_back(slot);
  choose_next_ticket();
}

bool Decider::is_waiting(std::uint64_t ticket) const {
  const Open& open = open_[slot_of(ticket)];
  return open.generation == generation_of(ticket) && (open.asker != nullptr || open.debit != 0);
}

store::AnswerSink::Fate Decider::on_answer(std::uint64_t ticket, const store::Answer& answer,
                                           SteadyTime now) {
  now_ = now;
  const DeadlineQueue::Slot slot = slot_of(ticket);
  Open& open = open_[slot];
  if (open.debit != 0) {
    end_debit(open.debit, answer, now);
    release(slot);
    return Fate::delivered;
  }
  if (open.asker == nullptr) {
    Fate fate = open.fate;
    if (answer.status == store::Answer::Status::decided) {
      ++late_answers_total_;
      if (shares_) fate = settle_share(open, answer, now);
    }
    release(slot);
    return fate;
  }
  const LimitPtr limit = open.limit;
  const bool is_decided = answer.status == store::Answer::Status::decided;
  SubjectView subject(limit, open.rule, open.operation, open.cost);
  subject.is_about_overflow = answer.by_overflow;
  const auto decision = is_decided ? by_store(*limit, *open.rule, answer, source_of(answer))
                                   : by_policy(subject, {open.key, open.hash}, open.shard, now);
  Asker& asker = *open.asker;
  const std::uint64_t msgid = open.msgid;
  decided_later(decision, open, now);
  deadlines_.remove(slot);
  release(slot);
  asker.on_decision(msgid, decision);
  return Fate::delivered;
}

void Decider::on_taken(std::uint64_t ticket, std::span<const store::Taken> by_tier) {
  const Open& open = open_[slot_of(ticket)];
  if (open.debit != 0 && open.generation == generation_of(ticket)) shares_->note_taken(open.debit, by_tier);
}

void Decider::expire(SteadyTime now) {
  while (!deadlines_.is_empty() && deadlines_.next_deadline() <= now) expire_next(now);
}

void Decider::expire_all(SteadyTime now) {
  while (!deadlines_.is_empty()) expire_next(now);
}

void Decider::expire_next(SteadyTime now) {
  now_ = now;
  const DeadlineQueue::Slot slot = deadlines_.next();
  deadlines_.remove(slot);
  Open& open = open_[slot];
  const auto decision =
      by_policy({open.limit, open.rule, open.operation, open.cost}, {open.key, open.hash}, open.shard, now);
  open.fate = decision.allowed ? Fate::allowed_meanwhile : Fate::refused_meanwhile;
  ++expired_total_;
  store_.note_expired(open.shard, now - open.asked_at, now);
  decided_later(decision, open, now);
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

protocol::Decision Decider::by_own_share(SubjectView subject, store::Answer answer, std::size_t shard,
                                         SteadyTime now) {
  limiter::Decision& decision = answer.decision;
  if (decision.retry_after == limiter::kNever) {
    // More than the share holds, but not more than the limit: the store may grant it.
    if (decision.verdict == limiter::Verdict::never) decision.verdict = limiter::Verdict::limited;
    decision.retry_after = store_.next_probe_in(shard, now);
  }
  return by_store(*subject.limit, *subject.rule, answer, Source::fallback);
}

void Decider::decided_later(const protocol::Decision& decision, const Open& open, SteadyTime now) {
  registry_.latency(decision.source).record((now - open.asked_at).count());
  if (is_refusal(decision)) registry_.hot_keys().count_refusal(open.limit->label(), open.hot, now);
}

}  // namespace allowd::decide
