// SPDX-License-Identifier: MIT
#include "agent/loop/timer.h"

#include <chrono>
#include <memory>

#include "tests/support/printing.h"
#include "tests/support/turns.h"

namespace allowd::loop {
namespace {

using namespace std::chrono_literals;
using testing::turn_on;
using testing::turn_until;

TEST_CASE("timer: calls back once") {
  Loop loop;
  Timer timer(loop);
  int calls = 0;
  CHECK_FALSE(timer.is_running());
  timer.once(1ms, [&] { ++calls; });
  CHECK(timer.is_running());
  loop.run();  // returns, since nothing is left to wait for
  CHECK(calls == 1);
  CHECK_FALSE(timer.is_running());
}

TEST_CASE("timer: calls back every so often until it is stopped") {
  Loop loop;
  Timer timer(loop);
  int calls = 0;
  timer.every(1ms, [&] {
    if (++calls == 3) timer.stop();
  });
  loop.run();
  CHECK(calls == 3);
}

TEST_CASE("timer: no wait, or less than none, is the next turn") {
  for (const Micros wait : {0us, -5us}) {
    Loop loop;
    Timer timer(loop);
    int calls = 0;
    timer.once(wait, [&] { ++calls; });
    CHECK(calls == 0);
    loop.run();
    CHECK(calls == 1);
  }
}

TEST_CASE("timer: a period of less than a millisecond is a millisecond, not once") {
  Loop loop;
  Timer timer(loop);
  int calls = 0;
  timer.every(1us, [&] {
    if (++calls == 2) timer.stop();
  });
  loop.run();
  CHECK(calls == 2);
}

TEST_CASE("timer: is never early") {
  Loop loop;
  Timer timer(loop);
  const SteadyTime began = Loop::exact_now();
  SteadyTime called{};
  timer.once(2500us, [&] { called = Loop::exact_now(); });
  loop.run();
  // libuv counts in milliseconds that may have begun before we did.
  CHECK(called - began >= 2ms - 1us);
}

TEST_CASE("timer: starting it again replaces what was scheduled") {
  Loop loop;
  Timer timer(loop);
  int first = 0, second = 0;
  timer.every(1ms, [&] { ++first; });
  timer.once(1ms, [&] { ++second; });
  loop.run();
  CHECK(first == 0);
  CHECK(second == 1);
}

TEST_CASE("timer: may be started anew, or stopped, by its own work") {
  Loop loop;
  Timer timer(loop);
  std::string order;
  timer.once(1ms, [&] {
    order += 'a';
    timer.once(1ms, [&] {
      order += 'b';
      timer.every(1ms, [&] {
        order += 'c';
        timer.stop();
      });
    });
  });
  loop.run();
  CHECK(order == "abc");
}

TEST_CASE("timer: may be destroyed by its own work") {
  Loop loop;
  auto timer = std::make_unique<Timer>(loop);
  int calls = 0;
  timer->every(1ms, [&] {
    timer.reset();
    ++calls;  // the work outlives its timer
  });
  turn_until(loop, [&] { return calls > 0; });
  turn_on(loop);
  CHECK(calls == 1);
}

TEST_CASE("timer: one that is destroyed or stopped calls nobody") {
  Loop loop;
  int calls = 0;
  {
    Timer destroyed(loop);
    destroyed.once(1ms, [&] { ++calls; });
  }
  Timer stopped(loop);
  stopped.every(1ms, [&] { ++calls; });
  stopped.stop();
  stopped.stop();
  turn_on(loop);
  CHECK(calls == 0);
}

}  // namespace
}  // namespace allowd::loop
