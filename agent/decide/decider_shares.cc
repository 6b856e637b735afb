// SPDX-License-Identifier: MIT
//
// Decider, as far as this host enforces its share of limits alone.
#include <algorithm>

#include "agent/decide/decider.h"

namespace allowd::decide {

using limiter::Operation;
using protocol::Source;

namespace {

// Of a limit in parts each has a share of its own; else there is one.
std::uint32_t count_of_shares(const store::Question& question) {
  return question.parts.empty() ? 1 : static_cast<std::uint32_t>(question.parts.size());
}

store::Question about_part(store::Question question, std::uint32_t turn) {
  if (question.parts.empty()) return question;
  question.first_part = turn;
  question.definition = question.parts[question.part()].definition.get();
  return question;
}

bool passes_sooner(const store::Answer& one, const std::optional<store::Answer>& other) {
  if (!other || other->decision.retry_after == limiter::kNever) return true;
  return one.decision.retry_after != limiter::kNever &&
         one.decision.retry_after < other->decision.retry_after;
}

}  // namespace

std::optional<protocol::Decision> Decider::by_share(SubjectView subject, const HashedKey& key,
                                                    std::size_t shard, SteadyTime now) {
  if (!shares_) shares_ = std::make_unique<LocalShares>(store_, max_shares_);
  store::Question question = question_about(subject, key);
  if (subject.is_about_overflow) question = question.turned_over();
  auto answer = decide_by_shares(question, subject.limit->local_share(), shard, now);
  if (!answer) return std::nullopt;
  answer->by_overflow = answer->by_overflow || subject.is_about_overflow;
  return by_own_share(subject, *answer, shard, now);
}

std::optional<store::Answer> Decider::decide_by_shares(const store::Question& question, std::int64_t fixed,
                                                       std::size_t shard, SteadyTime now) {
  const std::uint32_t count = count_of_shares(question);
  const auto shard_of = [&](std::uint32_t turn) {
    return question.parts.empty() ? shard : store_.shard_of(about_part(question, turn));
  };
  const auto is_away = [&](std::uint32_t turn) {
    return store_.next_probe_in(shard_of(turn), now) > limiter::Micros{1};
  };
  // The parts that answer have had their say. Where all do, one of them was late: this host's own stands in.
  bool is_any_away = false;
  for (std::uint32_t turn = 0; turn < count; ++turn) is_any_away = is_any_away || is_away(turn);
  const bool asks_to_pass = question.operation == Operation::take && question.cost > 0;
  std::optional<store::Answer> best;
  for (std::uint32_t turn = 0; turn < count; ++turn) {
    if (is_any_away ? !is_away(turn) : turn > 0) continue;
    const std::optional<std::int64_t> agents = fixed != 0 ? fixed : store_.agents(shard_of(turn));
    if (!agents) continue;
    const auto answer = shares_->decide(about_part(question, turn), *agents, now);
    if (!answer) continue;
    if (!asks_to_pass || limiter::is_allowed(answer->decision)) return answer;
    if (passes_sooner(*answer, best)) best = answer;
  }
  return best;
}

std::optional<store::Answer> Decider::hold_by_shares(store::Question& question, SteadyTime now) {
  std::optional<store::Answer> refusal;
  for (std::uint32_t turn = 0; turn < count_of_shares(question); ++turn) {
    const auto answer = shares_->hold(about_part(question, turn), now);
    if (!answer) {
      question.first_part = turn;
      return std::nullopt;
    }
    if (passes_sooner(*answer, refusal)) refusal = answer;
  }
  return refusal;
}

void Decider::forget_shares(const store::Question& question) {
  for (std::uint32_t turn = 0; turn < count_of_shares(question); ++turn)
    shares_->forget(about_part(question, turn).state_hash());
}

void Decider::debit_shares(SubjectView subject, const HashedKey& key, SteadyTime now) {
  if (subject.limit->on_failure() != config::FailurePolicy::local || shares_->is_empty()) return;
  const store::Question own = question_about(subject, key);
  for (std::uint32_t turn = 0; turn < count_of_shares(own); ++turn)
    debit_share(subject, about_part(own, turn), now);
  const store::Overflow* overflow = subject.limit->overflow();
  if (overflow == nullptr || overflow->budget == nullptr) return;
  debit_share(subject, own.turned_over(), now);
}

void Decider::debit_share(SubjectView subject, store::Question about, SteadyTime now) {
  // A probe had better be somebody's: a force that goes behind questions of before the outage may find
  // nothing left of what these then give back.
  if (store_.next_probe_in(store_.shard_of(about), now) > limiter::Micros{1}) return;
  const auto debit = shares_->begin_debit(about, now);
  if (!debit) return;
  about.operation = Operation::force;
  about.cost = debit->permits;
  about.ticket = next_ticket_;
  about.deadline = now + kLongestDeadline;
  about.overflow = nullptr;  // it is known already
  about.is_about_overflow = false;
  const store::Answer answer = store_.ask(about, now);
  if (answer.status == store::Answer::Status::promised) {
    Open& open = open_[take_slot()];
    open.debit = debit->number;
    open.limit = subject.limit;  // keeps the definition alive
    return;
  }
  end_debit(debit->number, answer, now);
}

void Decider::end_debit(std::uint64_t number, const store::Answer& answer, SteadyTime now) {
  const bool is_charged = answer.status == store::Answer::Status::decided;
  shares_->end_debit(number,
                     is_charged          ? LocalShares::Outcome::charged
                     : answer.is_unasked ? LocalShares::Outcome::unasked
                                         : LocalShares::Outcome::unknown,
                     now);
}

Decider::Fate Decider::settle_share(const Open& open, const store::Answer& answer, SteadyTime now) {
  const bool is_shared = open.limit->on_failure() == config::FailurePolicy::local;
  const bool charges = open.operation == Operation::take || open.operation == Operation::force;
  const bool has_charged = charges && !answer.by_overflow && answer.decision.verdict == limiter::Verdict::ok;
  if (!is_shared || !has_charged) return open.fate;
  const SubjectView subject(open.limit, open.rule, open.operation, open.cost);
  // Else it would be debited beside that, or given back and debited. Of parts nobody knows which one it was;
  // together they owe so much less all the same.
  const store::Question question = question_about(subject, {open.key, open.hash});
  const bool in_part = open.fate == Fate::allowed_meanwhile && question.parts.empty();
  for (std::uint32_t turn = 0; turn < count_of_shares(question); ++turn) {
    if (shares_->take_as_paid(about_part(question, turn), open.asked_at, in_part, now))
      return Fate::allowed_meanwhile;
  }
  return open.fate;
}

}  // namespace allowd::decide
