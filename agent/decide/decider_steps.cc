// SPDX-License-Identifier: MIT
//
// Decider, as far as who asks about many keys takes it step by step.
#include <algorithm>

#include "agent/decide/decider.h"

namespace allowd::decide {

using limiter::Operation;
using protocol::ErrorCode;

Resolved Decider::resolve(Operation operation, const protocol::Query& query) {
  Resolved resolved;
  if (query.defined_inline) {
    auto limit = limits_.find_or_parse(*query.defined_inline);
    if (limit) {
      resolved.limit = std::move(*limit);
    } else {
      resolved.refusal = Outcome(ErrorCode::bad_request, std::move(limit.error().message));
    }
  } else if (const LimitPtr* limit = limits_.find(query.limit)) {
    resolved.limit = *limit;
  } else {
    resolved.refusal = unknown_limit(query.limit);
  }
  if (resolved.limit) {
    resolved.rule = &resolved.limit->rule_for(query.key, query.plan);
    const bool is_forced = query.is_forced && operation == Operation::take;
    resolved.operation = is_forced ? Operation::force : operation;
  }
  return resolved;
}

bool Decider::is_decided_here(SubjectView subject) const {
  return subject.rule->kind != config::Override::Kind::definition || is_kept_here(*subject.limit) ||
         can_never_pass(subject);
}

bool Decider::would_pass(SubjectView subject, std::string_view key, SteadyTime now) {
  if (subject.operation != Operation::take) return true;
  const Rule& rule = *subject.rule;
  if (rule.kind == config::Override::Kind::unlimited) return true;
  if (rule.kind == config::Override::Kind::deny) return subject.limit->base().definition->is_shadow();
  if (!is_kept_here(*subject.limit)) return rule.definition->is_shadow();  // it can never pass
  store::Store& store = is_local_ ? store_ : host_;
  subject.operation = Operation::peek;
  return limiter::is_allowed(
      store.ask(question_about(subject, {key, subject.limit->hash_of(key)}), now).decision);
}

std::optional<std::uint32_t> Decider::epoch_of(SubjectView subject, std::string_view key,
                                               SteadyTime now) const {
  if (is_kept_here(*subject.limit)) return 0;
  store::Question question = question_about(subject, {key, subject.limit->hash_of(key)});
  if (subject.is_about_overflow) question = question.turned_over();
  return store_.epoch(store_.shard_of(question), now);
}

bool Decider::ask_together(std::span<const std::pair<Subject, std::string_view>> questions,
                           SteadyTime deadline, SteadyTime now, Asker& asker) {
  const bool can_be_asked =
      deadline > now && std::none_of(questions.begin(), questions.end(),
                                     [&](const auto& question) { return is_decided_here(question.first); });
  // Keys that are held have to pass their shares, one by one.
  const bool is_held = shares_ && std::any_of(questions.begin(), questions.end(), [&](const auto& question) {
                         const HashedKey key{question.second, question.first.limit->hash_of(question.second)};
                         return shares_->is_held(question_about(question.first, key), now);
                       });
  if (!can_be_asked || is_held) return false;
  std::vector<store::Question> asked;
  std::vector<DeadlineQueue::Slot> slots;
  std::vector<HashedKey> keys;
  for (const auto& [subject, key] : questions) {
    keys.push_back({key, subject.limit->hash_of(key)});
    if (shares_) debit_shares(subject, keys.back(), now);
    asked.push_back(question_about(subject, keys.back()));
    asked.back().ticket = next_ticket_;
    asked.back().deadline = deadline;
    slots.push_back(take_slot());
  }
  if (!store_.ask_together(asked)) {
    for (const DeadlineQueue::Slot slot : slots) release(slot);
    return false;
  }
  for (std::size_t i = 0; i < questions.size(); ++i)
    occupy(slots[i], questions[i].first, keys[i], asked[i], now, asker, i);
  return true;
}

}  // namespace allowd::decide
