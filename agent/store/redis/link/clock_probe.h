// SPDX-License-Identifier: MIT
//
// Asks a server what time it is.
#pragma once

#include <functional>
#include <vector>

#include "agent/store/redis/codec/server_error.h"
#include "agent/store/redis/link/connection.h"

namespace allowd::store {

// One answer to TIME, sent and received at these times on our clock.
struct ClockReading {
  SteadyTime sent{};
  SteadyTime received{};
  limiter::TimePoint server{};
};

struct ClockReadings {
  std::vector<ClockReading> all;  // empty if one failed
  Error why;                      // then: what was wrong
  ServerError kind = ServerError::other;
};

// Asks TIME, once more after a reading whose round trip was longer than half a millisecond, three times at
// most: enough for one of them not to have been held up. Then calls `done`; never if the connection ends
// before.
void ask_time(Connection& connection, std::function<void(ClockReadings)> done);

}  // namespace allowd::store
