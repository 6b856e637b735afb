// SPDX-License-Identifier: MIT
//
// An upper bound of what is left of a key, from what the shared store said last.
//
// Others can only have taken since. So whatever the limit's own arithmetic refuses from that state, the store
// refuses too, and no wait that it names is too long. But for clocks: another agent's may be ahead of ours by
// the error of both, and what it took counted refill, or the next window, that ours has not reached. It also
// took a permit at least; so where a permit takes longer to come back than clocks can differ, nothing is
// added.
//
//   bucket, sliding window   refill of 2 * uncertainty, less one permit, in whole ticks
//   fixed window, log        until 2 * uncertainty before the end of the window, or the next permit's return
//   counter                  the same, and a millisecond: Redis rounds TTLs
//
// A log and a counter are kept as the window that they look like until the first permit returns.
//
// Pure. Units: permits, shard microseconds.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "agent/limiter/definition.h"

namespace allowd::prefilter {

struct Level {
  enum class Kind : std::uint8_t {
    unknown,
    tier,   // `state` is that of the deciding tier
    tiers,  // all tiers' states are kept elsewhere
    until,  // state.used permits are in use until state.at at least
  };

  limiter::TierState state;
  limiter::TimePoint at{};  // when the store said so
  Kind kind = Kind::unknown;
  std::uint8_t tier = 0;   // that decided
  std::uint32_t more = 0;  // where the states of all tiers are kept; 0: nowhere
};

// From `decision`, the last that the store made at `at`, after which its tiers stood at `states` (shapes
// bucket and tiers). Of several tiers it is the level of the deciding one, all that can refuse if the others
// are not kept.
[[nodiscard]] Level learn(const limiter::Definition& definition, const limiter::Decision& decision,
                          std::span<const limiter::TierState> states, limiter::TimePoint at);

// The refusal that the store would give at `now`, with waits that are not too long; none if it might pass.
// `all` are the states of a level of kind `tiers`.
[[nodiscard]] std::optional<limiter::Decision> refuse(const limiter::Definition& definition,
                                                      const Level& level,
                                                      std::span<const limiter::TierState> all,
                                                      std::int64_t cost, limiter::TimePoint now,
                                                      limiter::Micros uncertainty);

// The same, for who would not have it copied: where it might pass the verdict is `ok`, and the rest says
// nothing.
[[nodiscard]] limiter::Decision decide_by_level(const limiter::Definition& definition, const Level& level,
                                                std::span<const limiter::TierState> all, std::int64_t cost,
                                                limiter::TimePoint now, limiter::Micros uncertainty);

// Whether the level is that of one bucket in its own unit, as most are; then this is the same, in line.
[[nodiscard, gnu::always_inline]] inline bool is_of_bucket(const limiter::Definition& definition,
                                                           const Level& level) {
  return level.kind == Level::Kind::tier && definition.shape() == limiter::Definition::Shape::bucket &&
         definition.asks_exactly(level.state, limiter::Operation::peek);
}
[[nodiscard]] limiter::Decision decide_by_bucket(const limiter::Definition& definition, const Level& level,
                                                 std::int64_t cost, limiter::TimePoint now,
                                                 limiter::Micros uncertainty);

// How long one permit of the tier takes to come back, at least 1 µs.
[[nodiscard]] limiter::Micros refill_interval(const limiter::Tier& tier);

// How far ahead of our clock the store may seem to be, if no permit comes back in less than `quickest`.
[[nodiscard]] inline limiter::Micros clock_slack(limiter::Micros quickest, limiter::Micros uncertainty) {
  const limiter::Micros ahead = 2 * uncertainty - quickest;
  return ahead.count() > 0 ? ahead : limiter::Micros{0};  // std::max takes it through memory
}

[[gnu::always_inline]] inline limiter::Decision decide_by_bucket(const limiter::Definition& definition,
                                                                 const Level& level, std::int64_t cost,
                                                                 limiter::TimePoint now,
                                                                 limiter::Micros uncertainty) {
  limiter::TierState state = level.state;
  limiter::Decision decision =
      definition.ask_exactly(state, limiter::Operation::peek, cost,
                             now + clock_slack(definition.bucket().quickest_return(), uncertainty));
  if (!definition.can_hold(cost)) decision.verdict = limiter::Verdict::ok;  // the store says so itself
  return decision;
}

}  // namespace allowd::prefilter
