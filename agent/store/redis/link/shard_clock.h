// SPDX-License-Identifier: MIT
//
// What time it is on the shard, from this host's monotonic clock and a measured offset (Cristian's algorithm:
// the server's TIME lies within the round trip that fetched it, so half of the round trip bounds the error;
// the shortest of several round trips bounds it best).
//
// Pure: times are arguments.
#pragma once

#include <cstdint>
#include <optional>

#include "agent/store/store.h"

namespace allowd::store {

class ShardClock {
 public:
  // One answer to TIME, sent and received at these times on our clock.
  void add_sample(SteadyTime sent, SteadyTime received, limiter::TimePoint server);
  // Adopts the best sample since the last call. A correction within the uncertainty of both, ours and the
  // sample's, is slewed at 1 ms per second; a larger one is taken at once and counted as a jump. True on a
  // jump.
  bool finish_round(SteadyTime now);
  // Another server may be answering: what was measured means nothing now.
  void forget();

  [[nodiscard]] bool is_set() const { return offset_.has_value(); }
  // Expects is_set().
  [[nodiscard]] limiter::TimePoint at(SteadyTime now) const;
  // Bound of at()'s error: that of the measurement, and what is still to be slewed.
  [[nodiscard]] limiter::Micros uncertainty(SteadyTime now) const;
  [[nodiscard]] std::uint64_t jumps() const { return jumps_; }

 private:
  struct Sample {
    limiter::Micros offset;
    limiter::Micros uncertainty;
  };
  [[nodiscard]] limiter::Micros slewed_at(SteadyTime now) const;
  [[nodiscard]] limiter::Micros offset_at(SteadyTime now) const { return *offset_ + slewed_at(now); }

  std::optional<Sample> best_;
  std::optional<limiter::Micros> offset_;  // true when the slew began
  limiter::Micros slew_{0};                // to be added to it from then on
  SteadyTime slew_began_{};
  limiter::Micros uncertainty_{0};  // of the measurement
  std::uint64_t jumps_ = 0;
};

}  // namespace allowd::store
