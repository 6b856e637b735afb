// SPDX-License-Identifier: MIT
//
// The time that deciding code works in: microseconds since the Unix epoch on the clock of the shard that
// keeps the key. The clock has no now(): whoever decides is told the time, so that any history can be
// replayed.
#pragma once

#include <chrono>
#include <cstdint>

namespace allowd::limiter {

using Micros = std::chrono::duration<std::int64_t, std::micro>;

struct ShardClock {
  using duration = Micros;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<ShardClock>;
  static constexpr bool is_steady = false;
};

using TimePoint = ShardClock::time_point;

}  // namespace allowd::limiter
