// SPDX-License-Identifier: MIT
//
// Prefilter, as far as a limit is kept in parts.
#include "agent/prefilter/passing.h"
#include "agent/prefilter/prefilter.h"

namespace allowd::prefilter {

using limiter::Operation;
using store::Answer;

std::size_t Prefilter::part_at(const Waiter& waiter, std::string_view key, std::size_t turn) const {
  // Hosts begin at different parts, each always at the same one.
  return (hasher_.hash(waiter.limit_tag, key).high + turn) % waiter.parts.size();
}

Answer Prefilter::ask_parts(Waiter waiter, std::string_view key, SteadyTime now) {
  Answer refused;
  for (; waiter.refused_parts < waiter.parts.size(); ++waiter.refused_parts) {
    const store::Part& part = waiter.parts[part_at(waiter, key, waiter.refused_parts)];
    store::Question question{waiter.operation, part.definition.get(), part.limit_tag,  key,
                             waiter.cost,      waiter.ticket,         waiter.deadline, 0};
    const store::KeyHash hash = hasher_.hash(part.limit_tag, key);
    KnownKey* known = keys_.find(hash);
    Answer answer;
    if (!may_refuse(known) || !refuse(*known, waiter.operation, *part.definition, waiter.cost, now, answer)) {
      answer = enqueue(question, known, hash, now, &waiter);
      if (answer.status != Answer::Status::decided) return answer;
    }
    // Whichever comes first lets it pass.
    if (refused.status != Answer::Status::decided ||
        answer.decision.retry_after < refused.decision.retry_after)
      refused = answer;
  }
  return refused;
}

bool Prefilter::tries_another_part(const Waiter& waiter, std::string_view key, Answer& answer,
                                   SteadyTime now) {
  if (waiter.parts.empty() || !asks_to_pass(waiter.operation, waiter.cost)) return false;
  if (!sink_->is_waiting(waiter.ticket)) return false;
  const bool is_decided = answer.status == Answer::Status::decided;
  if (is_decided && has_passed(*waiter.definition, answer.decision)) return false;
  Waiter next = waiter;
  ++next.refused_parts;
  --waiting_;  // it is counted again where it waits next
  const Answer another = ask_parts(next, key, now);
  if (another.status == Answer::Status::promised) return true;
  ++waiting_;
  if (is_decided && another.status == Answer::Status::decided &&
      another.decision.retry_after < answer.decision.retry_after)
    answer = another;
  return false;
}

}  // namespace allowd::prefilter
