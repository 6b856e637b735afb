// SPDX-License-Identifier: MIT
#include "agent/loop/next_turn.h"

#include <doctest/doctest.h>

#include <functional>
#include <optional>

namespace allowd::loop {
namespace {

void turn_once(Loop& loop) { uv_run(loop.raw(), UV_RUN_NOWAIT); }

TEST_CASE("next turn: work is called once") {
  Loop loop;
  NextTurn next(loop);
  int calls = 0;
  next.call([&] { ++calls; });
  CHECK(next.is_waiting());
  CHECK(calls == 0);
  loop.run();  // returns, since nothing is left to wait for
  CHECK(calls == 1);
  CHECK_FALSE(next.is_waiting());
}

TEST_CASE("next turn: what work puts off is called in the turn after it") {
  Loop loop;
  NextTurn next(loop);
  int calls = 0;
  const std::function<void()> again = [&] {
    ++calls;
    next.call(again);
  };
  next.call(again);
  for (int turn = 1; turn <= 3; ++turn) {
    turn_once(loop);
    CHECK(calls == turn);
  }
}

TEST_CASE("next turn: stopped or destroyed, it calls nobody") {
  Loop loop;
  int calls = 0;
  std::optional<NextTurn> next(std::in_place, loop);
  next->call([&] { ++calls; });
  next->stop();
  turn_once(loop);
  next->call([&] {
    ++calls;
    next.reset();  // from inside its own work
  });
  turn_once(loop);
  turn_once(loop);
  CHECK(calls == 1);
}

}  // namespace
}  // namespace allowd::loop
