// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/heartbeat.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace allowd::store {
namespace {

using namespace std::chrono_literals;

constexpr SteadyTime at(limiter::Micros since_start) { return SteadyTime{since_start}; }

TEST_CASE("agent count: nothing is known before the first reading") {
  CHECK_FALSE(AgentCount().agents().has_value());
}

TEST_CASE("agent count: more are believed at once, fewer when it has stayed so for half a minute") {
  AgentCount count;
  count.add(1, at(0s));
  CHECK(count.agents() == 1);
  count.add(4, at(1s));
  CHECK(count.agents() == 4);
  // As after the set was lost: each names itself again within a beat.
  count.add(1, at(10s));
  CHECK(count.agents() == 4);
  count.add(3, at(20s));
  count.add(3, at(31s));
  CHECK(count.agents() == 4);
  count.add(3, at(31s + 1us));
  CHECK(count.agents() == 3);
}

TEST_CASE("agent count: what is known stays known while nothing is read") {
  AgentCount count;
  count.add(7, at(1s));
  CHECK(count.agents() == 7);
  count.add(2, at(10h));
  CHECK(count.agents() == 2);
}

TEST_CASE("agent count: it is the largest of the last half minute, of random readings") {
  std::mt19937_64 random(5);
  AgentCount count;
  std::vector<std::pair<SteadyTime, std::uint32_t>> all;
  SteadyTime now = at(0s);
  for (int i = 0; i < 2000; ++i) {
    now += limiter::Micros{std::uniform_int_distribution<std::int64_t>(0, 12'000'000)(random)};
    const auto size = std::uniform_int_distribution<std::uint32_t>(1, 9)(random);
    count.add(size, now);
    all.emplace_back(now, size);
    std::uint32_t most = 0;
    for (const auto& [when, seen] : all) {
      if (now - when <= AgentCount::kRemembered) most = std::max(most, seen);
    }
    REQUIRE(count.agents() == most);
  }
}

}  // namespace
}  // namespace allowd::store
