// SPDX-License-Identifier: MIT
#include "agent/store/redis/server_troubles.h"

#include <doctest/doctest.h>

#include <chrono>
#include <set>

namespace allowd::store {
namespace {

using namespace std::chrono_literals;

constexpr SteadyTime kStart{std::chrono::hours(5)};

// How long limits of the shape are not asked about.
limiter::Micros wait_of(std::uint64_t seed) {
  ServerTroubles troubles(seed);
  troubles.forbid(1, kStart);
  SteadyTime now = kStart;
  while (troubles.is_forbidden(1, now)) now += 100ms;
  return now - kStart;
}

TEST_CASE("server troubles: a shape that lacks a permission is asked about again after 30 to 60 s") {
  std::set<limiter::Micros> waits;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const limiter::Micros wait = wait_of(seed);
    CHECK(wait >= 30s);
    CHECK(wait <= 60s + 100ms);
    waits.insert(wait);
  }
  CHECK(waits.size() > 100);  // agents do not come back as one
  CHECK(*waits.begin() < 33s);
  CHECK(*waits.rbegin() > 57s);
}

TEST_CASE(
    "server troubles: other shapes are asked about meanwhile, and one that is refused again waits anew") {
  ServerTroubles troubles(7);
  CHECK_FALSE(troubles.is_forbidden(1, kStart));
  troubles.forbid(1, kStart);
  CHECK(troubles.is_forbidden(1, kStart));
  for (const std::size_t other : {0, 2, 3}) CHECK_FALSE(troubles.is_forbidden(other, kStart));
  CHECK_FALSE(troubles.is_forbidden(1, kStart + 60s));
  troubles.forbid(1, kStart + 60s);
  CHECK(troubles.is_forbidden(1, kStart + 89s));
  CHECK_FALSE(troubles.is_forbidden(1, kStart + 120s));
}

}  // namespace
}  // namespace allowd::store
