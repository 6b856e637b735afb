// SPDX-License-Identifier: MIT
//
// The token bucket, exact in integers.
//
// A rate of count/period is reduced by their gcd to c tokens per `unit` microseconds. What is missing from
// full is counted in 1/unit tokens, so that one microsecond refills exactly c of them: nothing is ever
// rounded away, and all values stay below 2^52, where the doubles of Redis's Lua are integers too. Where they
// would not, time is counted in ticks of 10 µs, 100 µs, ... 1 s instead: refill comes at whole ticks since
// `last`, so no answer is earlier than the exact one, and none more than a tick later.
//
// The bucket is the definition alone; the state of a key is a BucketState, kept by a store.
//
// Ownership  Plain values; copy them freely.
// Units      Costs are whole permits, times shard microseconds.
// Errors     `make` refuses what the arithmetic cannot hold; nothing else fails. A `now` that steps back
//            grants nothing.
// Source     The integer form of the classic bucket; ngtcp2's ratelimiter and bucket4j carry remainders
// alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "agent/limiter/arithmetic.h"
#include "agent/limiter/decision.h"
#include "agent/limiter/time.h"
#include "agent/result/result.h"

namespace allowd::limiter {

// What one key has used. `unit` 0: nothing is known of the key, and so nothing is used.
struct BucketState {
  std::int64_t unit = 0;  // `used` counts in 1/unit permits
  std::int64_t used = 0;  // what is missing from full
  TimePoint last{};       // when `used` was true

  [[nodiscard]] bool exists() const { return unit != 0; }
};

class TokenBucket {
 public:
  // Fails unless count, period and burst are at least 1 and a full bucket stays below 2^52 units under some
  // tick.
  static Result<TokenBucket> make(Rate rate, std::int64_t burst);

  // Applies `operation` to the state and answers. A refused cost changes nothing.
  Decision apply(BucketState& state, Operation operation, std::int64_t cost, TimePoint now) const;

  // Whether the state is in this bucket's unit, and that counts every microsecond: so are nearly all.
  [[nodiscard]] bool counts_exactly(const BucketState& state) const {
    return state.unit == unit_ && tick_.count() == 1;
  }
  // `apply` of take and peek to such a state, in line, for what is done for every query.
  Decision ask_exactly(BucketState& state, Operation operation, std::int64_t cost, TimePoint now) const;

  // Brings the state to `now` under this definition: use counted in another unit is converted (rounded up),
  // time refills. Afterwards state.unit is this bucket's, and state.last is never earlier than before.
  void advance(BucketState& state, TimePoint now) const;

  // The numbers of a bucket that misses `used` units, about a question for `cost` that got `verdict`;
  // `since_tick` is the time since its last whole tick. This is all that a remote store has to send back.
  [[nodiscard]] Decision describe(std::int64_t used, std::int64_t cost, Verdict verdict,
                                  Micros since_tick = Micros{0}) const;

  [[nodiscard]] bool can_hold(std::int64_t cost) const { return cost <= burst_; }
  [[nodiscard]] std::int64_t burst() const { return burst_; }
  [[nodiscard]] std::int64_t unit() const { return unit_; }      // units in a permit
  [[nodiscard]] std::int64_t refill() const { return refill_; }  // units that come back in a tick
  [[nodiscard]] Micros tick() const { return tick_; }            // 1 µs unless the integers would not fit
  [[nodiscard]] std::int64_t full() const { return full_; }      // burst * unit
  [[nodiscard]] Micros window() const { return window_; }        // from empty to full
  [[nodiscard]] Rate rate() const { return rate_; }
  // No permit comes back in less, in whole ticks.
  [[nodiscard]] Micros quickest_return() const { return quickest_return_; }
  // How long an idle state may still matter, from its last whole tick on.
  [[nodiscard]] Micros time_to_full(std::int64_t used) const;

  bool operator==(const TokenBucket&) const = default;

 private:
  TokenBucket() = default;
  // How long until there are `units` again in a bucket that misses `used`.
  [[nodiscard]] Micros time_to_free(std::int64_t units, std::int64_t used) const {
    return time_to_full(used + units - full_);
  }
  // What a take gets of a bucket that misses `used` units.
  [[nodiscard]] Verdict verdict_of(std::int64_t used, std::int64_t cost) const {
    if (!can_hold(cost)) return Verdict::never;
    return cost > 0 && used + cost * unit_ > full_ ? Verdict::limited : Verdict::ok;
  }
  // Whether `used` units have come back, `since` after the last whole tick: exactly, with the part of a tick.
  // What began to count at that tick instead would mint.
  [[nodiscard]] bool is_empty(std::int64_t used, Micros since) const;

  Rate rate_;
  std::int64_t burst_ = 0;
  std::int64_t unit_ = 0;
  std::int64_t refill_ = 0;
  std::int64_t full_ = 0;
  Micros tick_{1};
  Micros window_{0};
  Micros quickest_return_{0};
};

inline Micros TokenBucket::time_to_full(std::int64_t used) const { return ceil_div(used, refill_) * tick_; }

[[gnu::always_inline]] inline Decision TokenBucket::describe(std::int64_t used, std::int64_t cost,
                                                             Verdict verdict, Micros since_tick) const {
  const std::int64_t remaining = used >= full_ ? 0 : floor_div(full_ - used, unit_);
  const bool is_full = used == 0;
  // All at once: what was cleared first would be written twice.
  return {.verdict = verdict,
          .capacity = burst_,
          .remaining = remaining,
          .retry_after = verdict == Verdict::limited ? time_to_free(cost * unit_, used) - since_tick
                         : verdict == Verdict::never ? kNever
                                                     : Micros{0},
          .reset_after = is_full ? Micros{0} : time_to_full(used) - since_tick,
          .window = window_,
          .more_after = is_full ? Micros{0} : time_to_free((remaining + 1) * unit_, used) - since_tick,
          .tier = 0};
}

[[gnu::always_inline]] inline Decision TokenBucket::ask_exactly(BucketState& state, Operation operation,
                                                                std::int64_t cost, TimePoint now) const {
  std::int64_t used = state.used;
  if (now > state.last) {  // a clock that steps back grants nothing
    const Wide back = Wide{(now - state.last).count()} * refill_;
    used = back >= used ? 0 : used - static_cast<std::int64_t>(back);
  }
  const Verdict verdict = verdict_of(used, cost);
  if (verdict == Verdict::ok && operation == Operation::take && cost > 0) {
    used += cost * unit_;
    state.used = used;
    state.last = std::max(state.last, now);
  }
  return describe(used, cost, verdict);
}

}  // namespace allowd::limiter
