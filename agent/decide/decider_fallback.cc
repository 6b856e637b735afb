// SPDX-License-Identifier: MIT
//
// Decider, as far as no store has a say: what the failure policy decides where it gives no answer, and
// overrides.
#include "agent/decide/decider.h"

namespace allowd::decide {

using limiter::Operation;
using protocol::Source;

protocol::Decision Decider::by_policy(SubjectView subject, const HashedKey& key, std::size_t shard,
                                      SteadyTime now) {
  if (subject.limit->on_failure() == config::FailurePolicy::local) {
    if (const auto own = by_share(subject, key, shard, now)) return *own;
  }
  const limiter::Definition& definition = subject.rule->asked();
  const limiter::Tier& tier = definition.strictest();
  const std::uint64_t capacity = static_cast<std::uint64_t>(tier.capacity());
  protocol::Decision decision{.limit = capacity,
                              .source = Source::fallback,
                              .tier = tier.name,
                              .window_us = static_cast<std::uint64_t>(tier.window().count())};
  const bool asks_to_pass = subject.operation == Operation::take || subject.operation == Operation::peek;
  // What costs nothing, gives back or is charged in any case is not refused by any limit.
  const bool is_free = !asks_to_pass || subject.cost == 0;
  if (is_free || subject.limit->on_failure() == config::FailurePolicy::allow) {
    decision.allowed = true;
    decision.remaining = capacity;
    decision.verdict = protocol::Verdict::ok;
  } else {
    const bool only_watches = definition.is_shadow() || tier.shadow;
    decision.allowed = only_watches;
    decision.verdict = only_watches ? protocol::Verdict::shadow : protocol::Verdict::unavailable;
    decision.retry_after_us = store_.next_probe_in(shard, now).count();
  }
  const auto index = static_cast<std::size_t>(&tier - definition.tiers().data());
  subject.rule->decisions[index]->add(decision.verdict, decision.source);
  return decision;
}

protocol::Decision Decider::by_override(const Limit& limit, const Rule& rule) {
  protocol::Decision decision{.allowed = true};
  if (rule.kind == config::Override::Kind::deny) {
    decision.allowed = limit.base().definition->is_shadow();
    decision.verdict = decision.allowed ? protocol::Verdict::shadow : protocol::Verdict::never;
    decision.retry_after_us = protocol::kNever;
  }
  rule.decisions.front()->add(decision.verdict, decision.source);
  return decision;
}

}  // namespace allowd::decide
