// SPDX-License-Identifier: MIT
//
// Turns a loop from a test, one turn after the other, until something has happened.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <functional>

#include "agent/loop/loop.h"
#include "agent/loop/timer.h"

namespace allowd::testing {

// Fails the test when it has not happened after some ten thousand milliseconds' worth of turns.
inline void turn_until(loop::Loop& loop, const std::function<bool()>& has_happened) {
  constexpr int kMostTurns = 10'000;
  loop::Timer tick(loop);
  tick.every(std::chrono::milliseconds(1), [] {});
  for (int turn = 0; !has_happened(); ++turn) {
    REQUIRE(turn < kMostTurns);
    uv_run(loop.raw(), UV_RUN_ONCE);
  }
}

// Some turns more, for what must not happen any more.
inline void turn_on(loop::Loop& loop, int turns = 5) {
  loop::Timer tick(loop);
  tick.every(std::chrono::milliseconds(1), [] {});
  for (int turn = 0; turn < turns; ++turn) uv_run(loop.raw(), UV_RUN_ONCE);
}

}  // namespace allowd::testing
