// SPDX-License-Identifier: MIT
#include "agent/prefilter/level.h"

#include <algorithm>

namespace allowd::prefilter {

using limiter::Decision;
using limiter::Definition;
using limiter::Micros;
using limiter::Tier;
using limiter::TimePoint;
using limiter::Verdict;

namespace {

constexpr Micros kTtlRounding = std::chrono::milliseconds(1);

// No permit of it comes back in less, in whole ticks.
Micros quickest_return(const Tier& tier, const limiter::TierState& state) {
  if (const auto* bucket = std::get_if<limiter::TokenBucket>(&tier.algorithm))
    return bucket->quickest_return();
  const limiter::Rate rate = tier.rate();
  const auto* window = std::get_if<limiter::SlidingWindow>(&tier.algorithm);
  if (window == nullptr) return Micros{0};
  // Windows that held more, under a limit that was lowered since, fade faster.
  const std::int64_t most = std::max({rate.count, state.scale, state.used});
  return rate.period / most / window->tick() * window->tick();
}

Micros slack(const Tier& tier, const limiter::TierState& state, Micros uncertainty) {
  return clock_slack(quickest_return(tier, state), uncertainty);
}

}  // namespace

Micros refill_interval(const Tier& tier) {
  const limiter::Rate rate = tier.rate();
  return std::max(Micros{1}, rate.period / rate.count);
}

Level learn(const Definition& definition, const Decision& decision,
            std::span<const limiter::TierState> states, TimePoint at) {
  Level level;
  level.at = at;
  level.tier = decision.tier;
  switch (definition.shape()) {
    case Definition::Shape::bucket:
    case Definition::Shape::tiers:
      level.kind = Level::Kind::tier;
      level.state = states[decision.tier];
      break;
    case Definition::Shape::log:
    case Definition::Shape::counter: {
      const Micros rounding = definition.shape() == Definition::Shape::counter ? kTtlRounding : Micros{0};
      if (decision.more_after <= rounding) break;
      level.kind = Level::Kind::until;
      level.state.used = decision.capacity - decision.remaining;
      level.state.at = at + decision.more_after - rounding;
      break;
    }
  }
  return level;
}

Decision decide_by_level(const Definition& definition, const Level& level,
                         std::span<const limiter::TierState> all, std::int64_t cost, TimePoint now,
                         Micros uncertainty) {
  Decision refusal;
  const auto ask_tier = [&](std::size_t index, limiter::TierState state) {
    const Tier& tier = definition.tiers()[index];
    if (tier.shadow) return;  // what only watches refuses nobody
    Decision decision =
        tier.apply(state, limiter::Operation::peek, cost, now + slack(tier, state, uncertainty));
    if (decision.verdict != Verdict::limited) return;
    decision.tier = static_cast<std::uint8_t>(index);
    if (refusal.verdict == Verdict::ok || decision.retry_after > refusal.retry_after) refusal = decision;
  };
  switch (level.kind) {
    case Level::Kind::unknown: break;
    case Level::Kind::tier: ask_tier(level.tier, level.state); break;
    case Level::Kind::tiers:
      for (std::size_t i = 0; i < definition.tiers().size(); ++i) ask_tier(i, all[i]);
      break;
    case Level::Kind::until: {
      const Tier& tier = definition.tiers()[level.tier];
      const Micros left = level.state.at - now - slack(tier, level.state, uncertainty);
      if (left.count() <= 0 || level.state.used + cost <= tier.capacity()) break;
      refusal = Decision{.verdict = Verdict::limited,
                         .capacity = tier.capacity(),
                         .remaining = tier.capacity() - level.state.used,
                         .retry_after = left,
                         .reset_after = left,
                         .window = tier.window(),
                         .more_after = left};
      break;
    }
  }
  definition.judge(refusal);
  return refusal;
}

std::optional<Decision> refuse(const Definition& definition, const Level& level,
                               std::span<const limiter::TierState> all, std::int64_t cost, TimePoint now,
                               Micros uncertainty) {
  const Decision decision = is_of_bucket(definition, level)
                                ? decide_by_bucket(definition, level, cost, now, uncertainty)
                                : decide_by_level(definition, level, all, cost, now, uncertainty);
  if (decision.verdict == Verdict::ok) return std::nullopt;
  return decision;
}

}  // namespace allowd::prefilter
