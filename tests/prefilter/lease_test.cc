// SPDX-License-Identifier: MIT
#include "agent/prefilter/lease.h"

#include <chrono>

#include "tests/prefilter/fleet.h"
#include "tests/support/printing.h"

namespace allowd::prefilter {
namespace {

using namespace std::chrono_literals;
using limiter::DefinitionPtr;
using limiter::Micros;
using testing::Fleet;

constexpr SteadyTime kStart{1000s};

TEST_CASE("lease: grants what is left, the oldest first, and what has lived a second goes back once") {
  Lease lease(100);
  CHECK_FALSE(lease.take(1, kStart));
  lease.add(10, kStart);
  lease.add(5, kStart + 600ms);
  CHECK(lease.left(kStart + 600ms) == 15);
  CHECK(lease.take(4, kStart + 700ms));
  CHECK_FALSE(lease.take(12, kStart + 700ms));
  CHECK(lease.next_expiry() == kStart + 1s);
  CHECK(lease.left(kStart + 1s) == 5);
  CHECK_FALSE(lease.take(6, kStart + 1s));
  CHECK(lease.expire(kStart + 1s) == 6);
  CHECK(lease.expire(kStart + 1s) == 0);
  CHECK(lease.expire(kStart + 1600ms) == 5);
  CHECK(lease.is_over(kStart + 1600ms));
}

TEST_CASE("lease: what is added over and over ends no later than what it is added to") {
  Lease lease(100);
  std::int64_t added = 0;
  for (int i = 0; i < 10; ++i, added += 3) lease.add(3, kStart + i * 50ms);
  CHECK(lease.left(kStart + 500ms) == added);
  CHECK(lease.left(kStart + 1150ms) == 0);
  CHECK(lease.expire(kStart + 1150ms) == added);
}

TEST_CASE("lease: its size follows the demand, and never is more outstanding than may be") {
  Lease lease(100);
  CHECK(lease.next_size(1000, kStart) == 100);
  CHECK(lease.next_size(60, kStart) == 60);
  lease.add(100, kStart);
  CHECK(lease.next_size(1000, kStart) == 0);
  CHECK(lease.take(80, kStart + 25ms));
  CHECK(lease.runs_low(kStart + 25ms));
  // 80 in 25 ms are 320 in 100 ms: halfway there, less what is left.
  CHECK(lease.next_size(1000, kStart + 25ms) == 210 - 20);
  CHECK(lease.next_size(50, kStart + 25ms) == 30);
  // Demand that ends lets it shrink.
  std::int64_t size = 1000;
  for (int i = 1; i < 20; ++i) size = lease.next_size(1000, kStart + 1s + i * 100ms);
  CHECK(size <= 1);
}

TEST_CASE("lease: where more is needed than may be taken, it runs low when half of that is gone") {
  Lease lease(1000);
  CHECK(lease.next_size(100, kStart) == 100);
  lease.add(100, kStart);
  CHECK_FALSE(lease.runs_low(kStart));
  CHECK(lease.take(50, kStart + 1ms));
  CHECK_FALSE(lease.runs_low(kStart + 1ms));
  CHECK(lease.take(1, kStart + 1ms));
  CHECK(lease.runs_low(kStart + 1ms));
  CHECK(lease.next_size(100, kStart + 1ms) == 51);
}

TEST_CASE("lease: a burst after a long pause is no demand") {
  CHECK(Lease::demand(1000, 1h) == 0);
  CHECK(Lease::demand(10, 1us) == 1000);
  CHECK(Lease::demand(1'000'000, 1s) == 100'000);
}

DefinitionPtr bucket(std::int64_t count, Micros period, std::int64_t burst) {
  return *limiter::Definition::make({{"", *limiter::TokenBucket::make({count, period}, burst), false}},
                                    false);
}

TEST_CASE("lease: one hot allowed key costs the store next to nothing") {
  Fleet fleet(1, bucket(1'000'000, 1s, 1'000'000), 50'000);
  fleet.run(1s, 20);
  CHECK(fleet.admitted > 199'000);
  CHECK(fleet.local > 198'000);
  CHECK(fleet.questions <= 50);
}

TEST_CASE("lease: a key that is hotter than its lease allows for costs a question per half of it") {
  Fleet fleet(1, bucket(1'000'000, 1s, 1'000'000), 2000);
  fleet.run(1s, 20);  // 20,000 within the span that a lease is for
  CHECK(fleet.admitted > 199'000);
  CHECK(fleet.questions <= 250);
}

TEST_CASE("lease: hosts under steady demand use the limit up, and pass it by no more than their leases") {
  constexpr std::int64_t kRate = 20'000, kBurst = 20'000, kLease = 1000;
  Fleet fleet(4, bucket(kRate, 1s, kBurst), kLease);
  fleet.run(1s, 4);  // 160,000 a second ask
  const std::int64_t before = fleet.admitted;
  CHECK(before <= kBurst + kRate + 4 * kLease);
  fleet.run(5s, 4);
  const std::int64_t admitted = fleet.admitted - before;
  CHECK(admitted >= 5 * kRate * 97 / 100);
  CHECK(admitted <= 5 * kRate + 4 * kLease);
}

TEST_CASE("lease: every permit is granted once, or goes back") {
  // Nothing comes back within the test: what was not admitted is still there at the end.
  Fleet fleet(4, bucket(1, 1h, 500'000), 20'000);
  fleet.run(300ms, 10);
  CHECK(fleet.local > 0);
  CHECK(fleet.used() > fleet.admitted);  // some has been taken ahead
  fleet.run(2500ms, 0);
  fleet.end_leases();
  CHECK(fleet.used() == fleet.admitted);
  fleet.run(300ms, 10);
  fleet.run(1s, 0);
  fleet.end_leases();
  CHECK(fleet.used() == fleet.admitted);
}

TEST_CASE("lease: a bucket that is drained with leases admits exactly what it holds") {
  Fleet fleet(4, bucket(1, 24h, 30'000), 1500);
  fleet.run(3s, 10);
  CHECK(fleet.admitted == 30'000);
}

}  // namespace
}  // namespace allowd::prefilter
