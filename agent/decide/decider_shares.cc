// SPDX-License-Identifier: MIT
//
// Decider, as far as this host enforces its share of limits alone.
#include <algorithm>

#include "agent/decide/decider.h"

namespace allowd::decide {

using limiter::Operation;
using protocol::Source;

std::optional<protocol::Decision> Decider::by_share(SubjectView subject, const HashedKey& key,
                                                    std::size_t shard, SteadyTime now) {
  const std::int64_t fixed = subject.limit->local_share();
  const std::optional<std::int64_t> agents = fixed != 0 ? fixed : store_.agents(shard);
  if (!agents) return std::nullopt;
  if (!shares_) shares_ = std::make_unique<LocalShares>(store_, max_shares_);
  store::Question question = question_about(subject, key);
  if (subject.is_about_overflow) {
    question.definition = subject.limit->overflow()->definition.get();
    question.limit_tag = subject.limit->overflow()->tag;
    question.key = {};
    question.hash = subject.limit->overflow()->hash;
  }
  auto answer = shares_->decide(question, *agents, now);
  if (!answer) return std::nullopt;
  answer->by_overflow = answer->by_overflow || subject.is_about_overflow;
  return by_own_share(subject, *answer, shard, now);
}

void Decider::debit_shares(SubjectView subject, const HashedKey& key, SteadyTime now) {
  if (subject.limit->on_failure() != config::FailurePolicy::local) return;
  store::Question own = question_about(subject, key);
  debit_share(subject, own, now);
  const store::Overflow* overflow = subject.limit->overflow();
  if (overflow == nullptr || overflow->budget == nullptr) return;
  own.definition = overflow->definition.get();
  own.limit_tag = overflow->tag;
  own.key = {};
  own.hash = overflow->hash;
  debit_share(subject, own, now);
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
  // Else it would be debited beside that, or given back and debited.
  const bool is_paid = shares_->take_as_paid(question_about(subject, {open.key, open.hash}), open.asked_at,
                                             open.fate == Fate::allowed_meanwhile, now);
  return is_paid ? Fate::allowed_meanwhile : open.fate;
}

}  // namespace allowd::decide
