// SPDX-License-Identifier: MIT
#include "agent/store/redis/breaker.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace allowd::store {
namespace {

using namespace std::chrono_literals;
using limiter::Micros;
using Failure = Breaker::Failure;
using State = Breaker::State;

constexpr SteadyTime at(Micros since_start) { return SteadyTime{since_start}; }

void open(Breaker& breaker, SteadyTime now, Failure why = Failure::refused) {
  for (int i = 1; i < Breaker::kFailuresToOpen; ++i) REQUIRE_FALSE(breaker.on_failure(why, now));
  REQUIRE(breaker.on_failure(why, now));
}

TEST_CASE("breaker: the fifth failure in a row opens it, and not the fifth of many") {
  Breaker breaker(1);
  for (int i = 0; i < 20; ++i) {
    for (int j = 1; j < Breaker::kFailuresToOpen; ++j) CHECK_FALSE(breaker.on_failure(Failure::lost, at(1s)));
    CHECK_FALSE(breaker.is_untroubled());
    breaker.on_success();
    CHECK(breaker.is_untroubled());
  }
  CHECK(breaker.state() == State::closed);
  CHECK(breaker.next_probe_in(at(1s)) == 1us);
  CHECK(breaker.opens() == 0);
  open(breaker, at(1s));
  CHECK(breaker.state() == State::open);
  CHECK(breaker.opens() == 1);
  CHECK_FALSE(breaker.lets_through(at(1s)));
}

TEST_CASE("breaker: what else fails once it is open changes nothing") {
  Breaker breaker(1);
  open(breaker, at(1s));
  const Micros before = breaker.next_probe_in(at(1s));
  for (int i = 0; i < 20; ++i) {
    CHECK_FALSE(breaker.on_failure(Failure::not_permitted, at(1s)));
    CHECK_FALSE(breaker.on_timeout(1s, at(1s + i * 10ms)));
  }
  CHECK(breaker.next_probe_in(at(1s)) == before);
  CHECK(breaker.opens() == 1);
}

TEST_CASE("breaker: one probe at a time, exactly when next_probe_in has said so") {
  Breaker breaker(7);
  open(breaker, at(1s));
  const SteadyTime due = at(1s) + breaker.next_probe_in(at(1s));
  CHECK(breaker.next_probe_in(due - 7us) == 7us);
  CHECK_FALSE(breaker.lets_through(due - 1us));
  CHECK(breaker.state() == State::open);
  CHECK(breaker.next_probe_in(due) == Breaker::kProbeIsDue);
  CHECK(breaker.lets_through(due));
  CHECK(breaker.state() == State::probing);
  for (const Micros later : {Micros{0}, Micros{1s}, Micros{1h}}) {
    CHECK_FALSE(breaker.lets_through(due + later));
    CHECK(breaker.next_probe_in(due + later) > Breaker::kProbeIsDue);
  }
  breaker.on_success();
  CHECK(breaker.state() == State::closed);
  CHECK(breaker.lets_through(due));
  CHECK(breaker.lets_through(due));
}

TEST_CASE("breaker: waits double from 100 ms to a second, each cut by at most a half, and begin anew") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Breaker breaker(seed);
    for (int round = 0; round < 2; ++round) {
      SteadyTime now = at(1s);
      open(breaker, now);
      for (const Micros longest : {100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
        const Micros wait = breaker.next_probe_in(now);
        CHECK(wait <= longest);
        CHECK(wait >= longest / 2);
        now += wait;
        REQUIRE(breaker.lets_through(now));
        breaker.on_probe_failed(Failure::timed_out, now);
        CHECK(breaker.state() == State::open);
      }
      now += breaker.next_probe_in(now);
      REQUIRE(breaker.lets_through(now));
      breaker.on_success();
    }
  }
}

TEST_CASE("breaker: a probe that took longer than the wait is followed by the next at once") {
  Breaker breaker(3);
  open(breaker, at(1s));
  REQUIRE(breaker.lets_through(at(2s)));
  breaker.on_probe_failed(Failure::timed_out, at(4s));
  CHECK(breaker.next_probe_in(at(4s)) == Breaker::kProbeIsDue);
  CHECK(breaker.lets_through(at(4s)));
}

TEST_CASE("breaker: agents that open at the same moment do not probe at the same moment") {
  std::vector<Micros> waits;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    Breaker breaker(seed);
    open(breaker, at(1s));
    waits.push_back(breaker.next_probe_in(at(1s)));
  }
  std::sort(waits.begin(), waits.end());
  CHECK(waits.back() - waits.front() > 30ms);
  CHECK(std::unique(waits.begin(), waits.end()) - waits.begin() > 60);
}

TEST_CASE("breaker: a permission that is missing is asked for again after half a minute at most") {
  Breaker breaker(5);
  open(breaker, at(1s), Failure::not_permitted);
  CHECK(breaker.next_probe_in(at(1s)) >= 15s);
  CHECK(breaker.next_probe_in(at(1s)) <= 30s);
  const SteadyTime due = at(1s) + breaker.next_probe_in(at(1s));
  REQUIRE(breaker.lets_through(due));
  breaker.on_probe_failed(Failure::not_permitted, due);
  CHECK(breaker.next_probe_in(due) >= 15s);
  REQUIRE(breaker.lets_through(due + 30s));
  // Another trouble has taken its place.
  breaker.on_probe_failed(Failure::refused, due + 30s);
  CHECK(breaker.next_probe_in(due + 30s) <= 1s);
}

TEST_CASE("breaker: of timeouts one in ten milliseconds counts") {
  Breaker breaker(1);
  for (int i = 0; i < 4; ++i) {
    for (Micros within{0}; within < 10ms; within += 100us)
      CHECK_FALSE(breaker.on_timeout(20ms, at(i * 10ms + within)));
  }
  CHECK(breaker.state() == State::closed);
  CHECK(breaker.on_timeout(20ms, at(40ms)));
  CHECK(breaker.state() == State::open);
}

TEST_CASE("breaker: who has no patience says nothing about the server") {
  Breaker breaker(1);
  for (int i = 0; i < 100; ++i) CHECK_FALSE(breaker.on_timeout(4999us, at(i * 20ms)));
  CHECK(breaker.is_untroubled());
  CHECK_FALSE(breaker.on_timeout(5ms, at(3s)));
  CHECK_FALSE(breaker.is_untroubled());
}

TEST_CASE("breaker: an answer in time closes it, whosever it was") {
  Breaker breaker(1);
  open(breaker, at(1s));
  breaker.on_success();
  CHECK(breaker.state() == State::closed);
  CHECK(breaker.is_untroubled());
  // A probe that ends afterwards is none any more.
  breaker.on_probe_failed(Failure::lost, at(2s));
  CHECK(breaker.state() == State::closed);
}

}  // namespace
}  // namespace allowd::store
