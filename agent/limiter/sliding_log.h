// SPDX-License-Identifier: MIT
//
// The exact window: remembers when each permit was taken. At most N in any interval of length W.
//
// A permit stamped at t is free at t + W, not before. A clock that steps back counts as the time of the
// newest stamp. Costs up to 1,000 stamps a key: for small limits that have to be exact.
//
// Units      Permits; times in shard microseconds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/limiter/decision.h"
#include "agent/limiter/time.h"
#include "agent/result/result.h"

namespace allowd::limiter {

struct Stamp {
  TimePoint at{};
  std::int64_t count = 0;  // permits; at least 1
  bool operator==(const Stamp&) const = default;
};

// Oldest first. Empty: nothing is known.
using LogState = std::vector<Stamp>;

class SlidingLog {
 public:
  static constexpr std::int64_t kMost = 1000;

  // Fails unless count is from 1 to kMost and the period at least 1 µs.
  static Result<SlidingLog> make(Rate rate);

  // Applies `operation` to the state and answers. A refused cost changes nothing.
  Decision apply(LogState& state, Operation operation, std::int64_t cost, TimePoint now) const;

  // What a remote store sends back of a log that holds `used` permits: when the newest leaves, and when
  // enough will have left for the cost (if it was refused) and for one more than what remains.
  struct Summary {
    std::int64_t used = 0;
    TimePoint all_free{};
    TimePoint cost_fits{};
    TimePoint more_fits{};
  };
  [[nodiscard]] Decision describe(const Summary& summary, Verdict verdict, TimePoint now) const;

  [[nodiscard]] Rate rate() const { return rate_; }
  bool operator==(const SlidingLog&) const = default;

 private:
  SlidingLog() = default;
  // When no more than `most` permits are left of `stamps`, `used` in all.
  [[nodiscard]] TimePoint shrinks_to(std::span<const Stamp> stamps, std::int64_t used,
                                     std::int64_t most) const;

  Rate rate_;
};

}  // namespace allowd::limiter
