// SPDX-License-Identifier: MIT
//
// Every test here ends with the Loop's destructor, which aborts the program if a handle was leaked.
#include "agent/loop/loop.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "agent/loop/stream.h"
#include "agent/loop/timer.h"
#include "tests/support/printing.h"
#include "tests/support/raw_socket.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::loop {
namespace {

using namespace std::chrono_literals;
using testing::turn_on;
using testing::turn_until;

TEST_CASE("loop: one that nobody used can go") { const Loop loop; }

TEST_CASE("loop: one without anything to wait for returns") {
  Loop loop;
  loop.run();
  CHECK(uv_loop_alive(loop.raw()) == 0);
}

TEST_CASE("loop: the work of a turn's end runs once a turn, in the order of registration") {
  Loop loop;
  std::string order;
  loop.at_turn_end([&] { order += 'a'; });
  loop.at_turn_end([&] { order += 'b'; });
  turn_on(loop, 3);
  CHECK(order == "ababab");
}

TEST_CASE("loop: time stands still within a turn and goes on between turns") {
  Loop loop;
  std::vector<SteadyTime> ends;
  loop.at_turn_end([&] {
    ::usleep(100);  // time that must not be seen
    ends.push_back(loop.now());
    CHECK(loop.now() == ends.back());
  });
  turn_until(loop, [&] { return ends.size() >= 5; });
  for (std::size_t i = 1; i < ends.size(); ++i) CHECK(ends[i] > ends[i - 1]);
  CHECK(Loop::exact_now() >= ends.back());
}

// What the observer was told of the turn in which `work` ran, which is the longest of some.
Turn observed_turn(const std::function<void()>& work) {
  Loop loop;
  Turn longest;
  loop.observe_turns([&](const Turn& turn) {
    if (turn.wall > longest.wall) longest = turn;
  });
  turn_on(loop);
  bool has_worked = false;
  loop.at_turn_end([&] {
    if (!std::exchange(has_worked, true)) work();
  });
  turn_on(loop);
  return longest;
}

TEST_CASE("loop: the observer tells a turn that slept from one that computed") {
  const Turn slept = observed_turn([] { ::usleep(20'000); });
  CHECK(slept.wall >= 20ms);
  CHECK(slept.processor < 10ms);
  const Turn computed = observed_turn([] {
    const auto used = [] { return std::clock() * 1000 / CLOCKS_PER_SEC; };
    for (const auto begun = used(); used() - begun < 20;) {
    }
  });
  CHECK(computed.wall >= 19ms);
  CHECK(computed.processor >= 19ms);
  CHECK(computed.processor <= computed.wall);
}

TEST_CASE("loop: waiting is no part of a turn, nor is what was done before the loop ran") {
  Loop loop;
  std::vector<Turn> turns;
  loop.observe_turns([&](const Turn& turn) { turns.push_back(turn); });
  static_cast<void>(loop.now());
  ::usleep(200'000);
  Timer late(loop);
  bool is_late = false;
  late.once(200ms, [&] { is_late = true; });
  while (!is_late) uv_run(loop.raw(), UV_RUN_ONCE);
  turn_on(loop);
  REQUIRE_FALSE(turns.empty());
  for (const Turn& turn : turns) CHECK(turn.wall < 150ms);
}

TEST_CASE("loop: a time that was read before waiting for events is not the time after it") {
  Loop loop;
  SteadyTime before{}, after{};
  Timer early(loop), late(loop);
  // libuv runs timers, then waits for the next one within the same turn.
  early.once(1ms, [&] { before = loop.now(); });
  late.once(6ms, [] {});
  loop.at_turn_end([&] {
    if (before != SteadyTime{} && after == SteadyTime{}) after = loop.now();
  });
  loop.run();
  CHECK(after - before >= 2ms);
}

TEST_CASE("loop: a wish to be woken makes a turn end when nothing else happens") {
  Loop loop;
  Timer keeps_alive(loop);
  keeps_alive.once(1h, [] {});
  const SteadyTime when = loop.now() + 3ms;
  loop.at_turn_end([&] {
    if (loop.now() >= when) loop.stop();
  });
  loop.wake_by(when);
  loop.run();
  CHECK(loop.now() >= when);
}

TEST_CASE(
    "loop: of several wishes the earliest counts, and who says so again at each turn's end is woken again") {
  Loop loop;
  Timer keeps_alive(loop);
  keeps_alive.once(1h, [] {});
  int woken = 0;
  const SteadyTime first = loop.now() + 2ms;
  SteadyTime next = first;
  loop.at_turn_end([&] {
    if (loop.now() >= next) {
      if (++woken == 3) return loop.stop();
      next = loop.now() + 2ms;
    }
    loop.wake_by(next + 1h);
    loop.wake_by(next);
    loop.wake_by(next + 2h);
  });
  loop.wake_by(first + 1h);
  loop.wake_by(first);
  loop.run();
  CHECK(woken == 3);
}

TEST_CASE("loop: a wish for a time that has passed is granted at once") {
  Loop loop;
  Timer keeps_alive(loop);
  keeps_alive.once(1h, [] {});
  int ends = 0;
  loop.at_turn_end([&] {
    if (++ends == 2) loop.stop();
    loop.wake_by(SteadyTime{});
  });
  loop.wake_by(loop.now() - 1s);
  loop.run();
  CHECK(ends == 2);
}

TEST_CASE("loop: a turn that was asked for does not wait") {
  Loop loop;
  Timer keeps_alive(loop);
  keeps_alive.once(1h, [] {});
  int ends = 0;
  loop.at_turn_end([&] {
    if (++ends < 4) return loop.run_another_turn();
    loop.stop();
  });
  loop.run_another_turn();
  loop.run();
  CHECK(ends == 4);
}

// Notes when bytes come, and takes them all.
class Listener final : public StreamEvents {
 public:
  explicit Listener(std::function<void()> on_some) : on_some_(std::move(on_some)) {}
  std::size_t on_bytes(std::span<const std::byte> bytes) override {
    on_some_();
    return bytes.size();
  }
  void on_end(int) override {}

 private:
  std::function<void()> on_some_;
};

TEST_CASE("loop: a turn that begins late reads what has arrived before its end looks at deadlines") {
  const testing::TemporaryDirectory directory;
  const auto listening = testing::RawSocket::listen_at(directory / "s");
  Loop loop;
  std::string order;
  Listener listener([&] { order += "read "; });
  Stream stream(loop, Stream::Family::unix_socket, listener);
  bool is_connected = false;
  stream.connect_unix(directory / "s", [&](int status) {
    CHECK(status == 0);
    is_connected = true;
    stream.start_reading();
  });
  turn_until(loop, [&] { return is_connected; });
  const auto peer = listening.accept();
  REQUIRE(peer.is_open());

  // A deadline is near; the answer arrives in time, but the loop is held up until both are past.
  const SteadyTime deadline = Loop::exact_now() + 1ms;
  loop.wake_by(deadline);
  REQUIRE(peer.send("answer") == 6);
  ::usleep(4000);
  loop.at_turn_end([&] {
    if (loop.now() >= deadline) order += "expire ";
  });
  turn_until(loop, [&] { return order.find("expire") != std::string::npos; });
  CHECK(order.starts_with("read expire "));
}

}  // namespace
}  // namespace allowd::loop
