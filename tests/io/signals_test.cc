// SPDX-License-Identifier: MIT
#include "agent/io/signals.h"

#include <csignal>
#include <optional>

#include "tests/support/printing.h"
#include "tests/support/turns.h"

namespace allowd::io {
namespace {

using testing::turn_on;
using testing::turn_until;

// SIGURG does nothing when nobody handles it.
TEST_CASE("signals: one that arrives calls back, each time, until nobody listens any more") {
  loop::Loop loop;
  int calls = 0;
  std::optional<Signal> signal;
  signal.emplace(loop, SIGURG, [&] { ++calls; });
  std::raise(SIGURG);
  turn_until(loop, [&] { return calls == 1; });
  std::raise(SIGURG);
  turn_until(loop, [&] { return calls == 2; });
  signal.reset();
  std::raise(SIGURG);
  turn_on(loop);
  CHECK(calls == 2);
}

TEST_CASE("signals: waiting for one does not keep the loop running") {
  loop::Loop loop;
  const Signal signal(loop, SIGURG, [] {});
  loop.run();
  CHECK(uv_loop_alive(loop.raw()) == 0);
}

}  // namespace
}  // namespace allowd::io
