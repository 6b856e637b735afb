// SPDX-License-Identifier: MIT
//
// Prefilter, as far as a limit is kept in parts.
#include "agent/prefilter/passing.h"
#include "agent/prefilter/prefilter.h"

namespace allowd::prefilter {

using limiter::Operation;
using store::Answer;

std::size_t Prefilter::part_at(const Waiter& waiter, std::size_t turn) {
  store::Question question;
  question.parts = waiter.parts;
  question.first_part = static_cast<std::uint32_t>(turn);
  question.hash = waiter.hash;
  return question.part();
}

store::KeyHash Prefilter::hash_in_part(const store::KeyHash& key, std::size_t part) {
  return store::Question::hash_in_part(key, part);
}

Answer Prefilter::ask_in_parts(const store::Question& question, SteadyTime now) {
  const Waiter waiter{
      question.ticket,    question.cost, question.deadline,  nullptr, question.operation, 0, question.parts,
      question.limit_tag, question.hash, question.first_part};
  const bool is_known = keys_.find(question.state_hash()) != nullptr;
  if (!is_known && !question.is_admitted(now)) return ask_overflow(question, now);
  return ask_parts(waiter, question.key, now);
}

Answer Prefilter::ask_parts(Waiter waiter, std::string_view key, SteadyTime now) {
  Answer refused;
  for (; waiter.parts_tried < waiter.parts.size(); ++waiter.parts_tried) {
    const std::size_t index = part_at(waiter, waiter.parts_tried);
    const store::Part& part = waiter.parts[index];
    const store::KeyHash hash = hash_in_part(waiter.hash, index);
    const store::Question question{.operation = waiter.operation,
                                   .definition = part.definition.get(),
                                   .limit_tag = part.limit_tag,
                                   .key = key,
                                   .cost = waiter.cost,
                                   .ticket = waiter.ticket,
                                   .deadline = waiter.deadline,
                                   .hash = hash};
    KnownKey* known = keys_.find(hash);
    Answer answer =
        may_refuse(known) ? refuse(*known, waiter.operation, *part.definition, waiter.cost, now) : Answer{};
    if (answer.status != Answer::Status::decided) {
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
  ++next.parts_tried;
  next.has_silent_part = waiter.has_silent_part || !is_decided;
  --waiting_;  // it is counted again where it waits next
  const Answer another = ask_parts(next, key, now);
  if (another.status == Answer::Status::promised) return true;
  ++waiting_;
  if (next.has_silent_part) {
    answer = Answer{};
  } else if (another.status == Answer::Status::decided &&
             another.decision.retry_after < answer.decision.retry_after) {
    answer = another;
  }
  return false;
}

}  // namespace allowd::prefilter
