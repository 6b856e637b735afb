// SPDX-License-Identifier: MIT
//
// Turns a loop from a test, one turn after the other, until something has happened.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <memory>

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

// The same without a tick that keeps the loop turning: whoever needs a turn has to ask for it. Fails when
// nobody has for four seconds: a server looks at its clients every five.
inline void run_until(loop::Loop& loop, const std::function<bool()>& has_happened) {
  constexpr auto kInVain = std::chrono::seconds(4);
  // The loop keeps the work of its turns' ends for good; this one comes to nothing afterwards.
  const auto waiting = std::make_shared<std::function<bool()>>(has_happened);
  loop.at_turn_end([&loop, waiting] {
    if (*waiting && (*waiting)()) loop.stop();
  });
  const auto began = loop::Loop::exact_now();
  loop::Timer guard(loop);
  guard.once(kInVain, [&] { loop.stop(); });
  loop.run();
  *waiting = nullptr;
  // The guard is due at the end of a turn too, which may be just the one that was missing.
  REQUIRE(loop::Loop::exact_now() - began < kInVain);
}

// Some turns more, for what must not happen any more.
inline void turn_on(loop::Loop& loop, int turns = 5) {
  loop::Timer tick(loop);
  tick.every(std::chrono::milliseconds(1), [] {});
  for (int turn = 0; turn < turns; ++turn) uv_run(loop.raw(), UV_RUN_ONCE);
}

}  // namespace allowd::testing
