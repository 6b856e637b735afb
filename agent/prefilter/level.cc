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

std::optional<Decision> refuse(const Definition& definition, const Level& level,
                               std::span<const limiter::TierState> all, std::int64_t cost, TimePoint now,
                               Micros uncertainty) {
  std::optional<Decision> refusal;
  const auto ask_tier = [&](std::size_t index, limiter::TierState state) {
    const Tier& tier = definition.tiers()[index];
    if (tier.shadow) return;  // what only watches refuses nobody
    Decision decision = tier.apply(state, limiter::Operation::peek, cost, now + slack(tier, uncertainty));
    if (decision.verdict != Verdict::limited) return;
    decision.tier = static_cast<std::uint8_t>(index);
    if (!refusal || decision.retry_after > refusal->retry_after) refusal = decision;
  };
  switch (level.kind) {
    case Level::Kind::unknown: break;
    case Level::Kind::tier: ask_tier(level.tier, level.state); break;
    case Level::Kind::tiers:
      for (std::size_t i = 0; i < definition.tiers().size(); ++i) ask_tier(i, all[i]);
      break;
    case Level::Kind::until: {
      const Tier& tier = definition.tiers()[level.tier];
      const Micros left = level.state.at - now - slack(tier, uncertainty);
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
  if (refusal) definition.judge(*refusal);
  return refusal;
}

}  // namespace allowd::prefilter
