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

bool comes_back_steadily(const Tier& tier) {
  return std::holds_alternative<limiter::TokenBucket>(tier.algorithm) ||
         std::holds_alternative<limiter::SlidingWindow>(tier.algorithm);
}

// How far ahead of our clock the store may seem to be.
Micros slack(const Tier& tier, Micros uncertainty) {
  if (!comes_back_steadily(tier)) return 2 * uncertainty;
  const limiter::Rate rate = tier.rate();
  return std::max(Micros{0}, 2 * uncertainty - rate.period / rate.count);
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
  const Tier& tier = definition.tiers()[decision.tier];
  if (tier.shadow) return level;  // what only watches refuses nobody
  switch (definition.shape()) {
    case Definition::Shape::bucket:
    case Definition::Shape::tiers:
      if (!states[decision.tier].exists()) break;
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

std::optional<Decision> refuse(const Definition& definition, const Level& level, std::int64_t cost,
                               TimePoint now, Micros uncertainty) {
  if (level.kind == Level::Kind::unknown) return std::nullopt;
  const Tier& tier = definition.tiers()[level.tier];
  const TimePoint latest = now + slack(tier, uncertainty);
  std::optional<Decision> refusal;
  if (level.kind == Level::Kind::tier) {
    limiter::TierState state = level.state;
    refusal = tier.apply(state, limiter::Operation::peek, cost, latest);
    if (refusal->verdict != Verdict::limited) return std::nullopt;
  } else {
    if (latest >= level.state.at || level.state.used + cost <= tier.capacity()) return std::nullopt;
    const Micros left = level.state.at - latest;
    refusal = Decision{.verdict = Verdict::limited,
                       .capacity = tier.capacity(),
                       .remaining = tier.capacity() - level.state.used,
                       .retry_after = left,
                       .reset_after = left,
                       .window = tier.window(),
                       .more_after = left};
  }
  refusal->tier = level.tier;
  definition.judge(*refusal);
  return refusal;
}

}  // namespace allowd::prefilter
