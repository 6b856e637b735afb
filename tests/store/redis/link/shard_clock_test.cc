// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/shard_clock.h"

#include <chrono>

#include "tests/support/printing.h"

namespace allowd::store {
namespace {

using namespace std::chrono_literals;
using limiter::Micros;
using limiter::TimePoint;

constexpr SteadyTime steady(Micros since_start) { return SteadyTime{since_start}; }
constexpr TimePoint server(Micros since_epoch) { return TimePoint{since_epoch}; }

// A clock whose server is `offset` ahead of ours, measured at `when` with that round trip.
bool measure(ShardClock& clock, Micros when, Micros offset, Micros round_trip) {
  clock.add_sample(steady(when), steady(when + round_trip), server(when + round_trip / 2 + offset));
  return clock.finish_round(steady(when + round_trip));
}

TEST_CASE("shard clock: knows nothing until it was measured") {
  ShardClock clock;
  CHECK_FALSE(clock.is_set());
  CHECK_FALSE(clock.finish_round(steady(1s)));
  CHECK_FALSE(clock.is_set());
  clock.add_sample(steady(1s), steady(1s + 100us), server(50s));
  CHECK_FALSE(clock.is_set());
  CHECK_FALSE(clock.finish_round(steady(2s)));
  CHECK(clock.is_set());
  CHECK(clock.jumps() == 0);
}

TEST_CASE("shard clock: the server's time is taken to be that of the middle of the round trip") {
  ShardClock clock;
  clock.add_sample(steady(10s), steady(10s + 200us), server(1000s));
  static_cast<void>(clock.finish_round(steady(10s + 200us)));
  CHECK(clock.at(steady(10s + 100us)) == server(1000s));
  CHECK(clock.at(steady(11s + 100us)) == server(1001s));
  // Half of the round trip, and what rounding and TIME's own resolution may add.
  CHECK(clock.uncertainty(steady(11s)) == 102us);
}

TEST_CASE("shard clock: a moment before the measurement has the same offset") {
  ShardClock clock;
  static_cast<void>(measure(clock, 10s, 1000s, 2ms));
  CHECK(clock.at(steady(9s)) == server(1009s));
}

TEST_CASE("shard clock: of several samples the shortest round trip counts, whatever the order") {
  for (const bool best_first : {true, false}) {
    ShardClock clock;
    const auto good = [&] { clock.add_sample(steady(1s), steady(1s + 100us), server(101s + 50us)); };
    const auto poor = [&] { clock.add_sample(steady(2s), steady(2s + 10ms), server(102s + 9ms)); };
    best_first ? good() : poor();
    best_first ? poor() : good();
    static_cast<void>(clock.finish_round(steady(3s)));
    CHECK(clock.at(steady(3s)) == server(103s));
    CHECK(clock.uncertainty(steady(3s)) == 52us);
  }
}

TEST_CASE("shard clock: an answer that seems to come before it was asked is taken for immediate") {
  ShardClock clock;
  clock.add_sample(steady(1s), steady(1s - 5us), server(7s));
  static_cast<void>(clock.finish_round(steady(1s)));
  CHECK(clock.at(steady(1s)) == server(7s));
  CHECK(clock.uncertainty(steady(1s)) == 2us);
}

TEST_CASE("shard clock: a small correction is slewed at a millisecond per second") {
  ShardClock clock;
  static_cast<void>(measure(clock, 0s, 1000s, 10ms));
  // 4 ms more, within the uncertainty of both measurements.
  CHECK_FALSE(measure(clock, 100s, 1000s + 4ms, 10ms));
  CHECK(clock.jumps() == 0);
  const Micros began = 100s + 10ms;
  CHECK(clock.at(steady(began)) == server(began + 1000s));
  CHECK(clock.at(steady(began + 1s)) == server(began + 1s + 1000s + 1ms));
  CHECK(clock.at(steady(began + 3999ms)) == server(began + 3999ms + 1000s + 3999us));
  CHECK(clock.at(steady(began + 4s)) == server(began + 4s + 1000s + 4ms));
  CHECK(clock.at(steady(began + 100s)) == server(began + 100s + 1000s + 4ms));
}

TEST_CASE("shard clock: a correction backwards is slewed too, and time never runs backwards") {
  ShardClock clock;
  static_cast<void>(measure(clock, 0s, 1000s, 10ms));
  CHECK_FALSE(measure(clock, 100s, 1000s - 4ms, 10ms));
  TimePoint before = clock.at(steady(100s + 10ms));
  for (Micros now = 100s + 10ms; now < 106s; now += 10ms) {
    const TimePoint time = clock.at(steady(now));
    CHECK(time >= before);
    before = time;
  }
  CHECK(clock.at(steady(200s)) == server(1200s - 4ms));
}

TEST_CASE("shard clock: a correction that comes during a slew goes on from where that was") {
  ShardClock clock;
  static_cast<void>(measure(clock, 0s, 1000s, 20ms));
  CHECK_FALSE(measure(clock, 10s, 1000s + 10ms, 20ms));
  // Two seconds later 2 ms of the 10 are done; the truth turns out to be 5 ms.
  CHECK_FALSE(measure(clock, 12s, 1000s + 5ms, 20ms));
  CHECK(clock.at(steady(12s + 20ms)) == server(12s + 20ms + 1000s + 2ms));
  CHECK(clock.at(steady(20s)) == server(1020s + 5ms));
}

TEST_CASE("shard clock: what is still to be slewed is part of the uncertainty") {
  for (const Micros correction : {4ms, -4ms}) {
    ShardClock clock;
    static_cast<void>(measure(clock, 0s, 1000s, 10ms));
    CHECK_FALSE(measure(clock, 100s, 1000s + correction, 200us));
    const Micros began = 100s + 200us;
    CHECK(clock.uncertainty(steady(began - 1s)) == 102us + 4ms);
    CHECK(clock.uncertainty(steady(began)) == 102us + 4ms);
    CHECK(clock.uncertainty(steady(began + 1s)) == 102us + 3ms);
    CHECK(clock.uncertainty(steady(began + 3999ms)) == 102us + 1us);
    CHECK(clock.uncertainty(steady(began + 4s)) == 102us);
    CHECK(clock.uncertainty(steady(200s)) == 102us);
  }
}

TEST_CASE("shard clock: what is still to be slewed is no jump when it is measured again") {
  ShardClock clock;
  static_cast<void>(measure(clock, 0s, 1000s, 10ms));
  CHECK_FALSE(measure(clock, 100s, 1000s + 4ms, 200us));
  CHECK_FALSE(measure(clock, 101s, 1000s + 4ms, 200us));
  CHECK(clock.jumps() == 0);
  CHECK(clock.uncertainty(steady(101s + 200us)) == 102us + 3ms);
}

TEST_CASE("shard clock: what the uncertainty cannot explain is a jump, taken at once and counted") {
  ShardClock clock;
  static_cast<void>(measure(clock, 0s, 1000s, 1ms));
  CHECK(measure(clock, 10s, 2000s, 1ms));
  CHECK(clock.jumps() == 1);
  CHECK(clock.at(steady(11s)) == server(2011s));
  CHECK(measure(clock, 20s, 500s, 1ms));
  CHECK(clock.jumps() == 2);
  CHECK(clock.at(steady(21s)) == server(521s));
}

TEST_CASE("shard clock: the bound between slewing and jumping is the sum of both uncertainties") {
  for (const Micros beyond : {0us, 1us}) {
    ShardClock clock;
    static_cast<void>(measure(clock, 0s, 1000s, 1ms));
    const Micros explained = 502us + 202us;
    CHECK(measure(clock, 10s, 1000s + explained + beyond, 400us) == (beyond > 0us));
    CHECK(clock.uncertainty(steady(20s)) == 202us);
  }
}

TEST_CASE("shard clock: a round without a sample changes nothing") {
  ShardClock clock;
  static_cast<void>(measure(clock, 0s, 1000s, 1ms));
  CHECK_FALSE(clock.finish_round(steady(5s)));
  CHECK(clock.at(steady(6s)) == server(1006s));
  CHECK(clock.uncertainty(steady(6s)) == 502us);
}

TEST_CASE("shard clock: after forgetting, the next measurement is believed and is no jump") {
  ShardClock clock;
  static_cast<void>(measure(clock, 0s, 1000s, 1ms));
  CHECK_FALSE(measure(clock, 10s, 1000s + 900us, 1ms));  // a slew is under way
  clock.add_sample(steady(11s), steady(11s), server(1s));
  clock.forget();
  CHECK_FALSE(clock.is_set());
  CHECK_FALSE(clock.finish_round(steady(12s)));  // the sample was of the old server
  CHECK_FALSE(clock.is_set());
  CHECK_FALSE(measure(clock, 20s, 5s, 1ms));
  CHECK(clock.jumps() == 0);
  CHECK(clock.at(steady(21s)) == server(26s));
  CHECK(clock.at(steady(100s)) == server(105s));  // nothing of the old slew is left
}

}  // namespace
}  // namespace allowd::store
