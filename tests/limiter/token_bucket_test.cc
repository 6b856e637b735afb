// SPDX-License-Identifier: MIT
#include "agent/limiter/token_bucket.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "tests/support/printing.h"

namespace allowd::limiter {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

TokenBucket bucket_of(std::int64_t count, Micros period, std::int64_t burst) {
  auto bucket = TokenBucket::make({count, period}, burst);
  REQUIRE(bucket);
  return *bucket;
}

constexpr TimePoint at(Micros since_epoch) { return TimePoint{since_epoch}; }

bool is_same_bytes(const BucketState& a, const BucketState& b) {
  static_assert(sizeof(BucketState) == 3 * sizeof(std::int64_t), "no padding, so that bytes can be compared");
  return std::memcmp(&a, &b, sizeof a) == 0;
}

TEST_CASE("token bucket: a key that nobody knows is full") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  BucketState state;
  CHECK_FALSE(state.exists());
  const Decision decision = bucket.apply(state, Operation::peek, 1, at(5s));
  CHECK(decision == Decision{Verdict::ok, 10, 10, 0us, 0us, 1s, 0us});
  CHECK_FALSE(state.exists());
}

TEST_CASE("token bucket: takes down to the last permit, then says when the next one comes") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  BucketState state;
  CHECK(bucket.apply(state, Operation::take, 1, at(0s)) ==
        Decision{Verdict::ok, 10, 9, 0us, 100ms, 1s, 100ms});
  CHECK(bucket.apply(state, Operation::take, 2, at(0s)) ==
        Decision{Verdict::ok, 10, 7, 0us, 300ms, 1s, 100ms});
  CHECK(bucket.apply(state, Operation::take, 7, at(0s)) == Decision{Verdict::ok, 10, 0, 0us, 1s, 1s, 100ms});
  CHECK(bucket.apply(state, Operation::take, 1, at(0s)) ==
        Decision{Verdict::limited, 10, 0, 100ms, 1s, 1s, 100ms});
  CHECK(bucket.apply(state, Operation::take, 1, at(99'999us)) ==
        Decision{Verdict::limited, 10, 0, 1us, 900'001us, 1s, 1us});
  CHECK(bucket.apply(state, Operation::take, 1, at(100ms)) ==
        Decision{Verdict::ok, 10, 0, 0us, 1s, 1s, 100ms});
}

TEST_CASE("token bucket: a refused cost takes nothing and leaves the state byte for byte") {
  const TokenBucket bucket = bucket_of(3, 1s, 5);
  BucketState state;
  static_cast<void>(bucket.apply(state, Operation::take, 4, at(1s)));
  const BucketState before = state;
  CHECK(bucket.apply(state, Operation::take, 2, at(1s + 7us)).verdict == Verdict::limited);
  CHECK(is_same_bytes(state, before));
  CHECK(bucket.apply(state, Operation::take, 6, at(2s)).verdict == Verdict::never);
  CHECK(is_same_bytes(state, before));
  CHECK(bucket.apply(state, Operation::take, 2, at(500ms)).verdict == Verdict::limited);
  CHECK(is_same_bytes(state, before));
  CHECK(bucket.apply(state, Operation::take, 1, at(1s)).verdict == Verdict::ok);
}

TEST_CASE("token bucket: a refusal by another definition leaves the state as the other wrote it") {
  const TokenBucket wide = bucket_of(3, 1s, 100), narrow = bucket_of(7, 10s, 2);
  BucketState state;
  static_cast<void>(wide.apply(state, Operation::take, 50, at(1s)));
  const BucketState before = state;
  CHECK(narrow.apply(state, Operation::take, 1, at(1s)).verdict == Verdict::limited);
  CHECK(is_same_bytes(state, before));
}

TEST_CASE("token bucket: a cost above the burst never passes, and the true numbers are shown") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  BucketState state;
  CHECK(bucket.apply(state, Operation::take, 11, at(0s)) ==
        Decision{Verdict::never, 10, 10, kNever, 0us, 1s, 0us});
  CHECK_FALSE(state.exists());
  static_cast<void>(bucket.apply(state, Operation::take, 10, at(0s)));
  CHECK(bucket.apply(state, Operation::take, kLargest, at(0s)) ==
        Decision{Verdict::never, 10, 0, kNever, 1s, 1s, 100ms});
  CHECK(bucket.apply(state, Operation::peek, kLargest, at(50ms)) ==
        Decision{Verdict::never, 10, 0, kNever, 950ms, 1s, 50ms});
  CHECK(bucket.can_hold(10));
  CHECK_FALSE(bucket.can_hold(11));
}

TEST_CASE("token bucket: a cost of exactly the burst passes when full and only then") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  BucketState state;
  CHECK(bucket.apply(state, Operation::take, 10, at(0s)).verdict == Verdict::ok);
  CHECK(bucket.apply(state, Operation::take, 10, at(999'999us)) ==
        Decision{Verdict::limited, 10, 9, 1us, 1us, 1s, 1us});
  CHECK(bucket.apply(state, Operation::take, 10, at(1s)).verdict == Verdict::ok);
}

TEST_CASE("token bucket: a cost of 0 passes always and writes nothing") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  BucketState state;
  for (const Operation operation : {Operation::take, Operation::peek, Operation::refund, Operation::force}) {
    CHECK(bucket.apply(state, operation, 0, at(1s)).verdict == Verdict::ok);
    CHECK_FALSE(state.exists());
  }
  static_cast<void>(bucket.apply(state, Operation::take, 10, at(1s)));
  const BucketState empty = state;
  for (const Operation operation : {Operation::take, Operation::peek, Operation::refund, Operation::force}) {
    CHECK(bucket.apply(state, operation, 0, at(1500ms)) ==
          Decision{Verdict::ok, 10, 5, 0us, 500ms, 1s, 100ms});
    CHECK(is_same_bytes(state, empty));
  }
}

TEST_CASE("token bucket: a peek says what a take would, and changes nothing") {
  const TokenBucket bucket = bucket_of(3, 1s, 7);
  BucketState state;
  static_cast<void>(bucket.apply(state, Operation::take, 5, at(0s)));
  for (const std::int64_t cost : {0, 1, 2, 3, 7, 8}) {
    CAPTURE(cost);
    for (const Micros when : {0us, 1us, 333'333us, 333'334us, 10'000'000us}) {
      BucketState copy = state;
      const Decision peeked = bucket.apply(state, Operation::peek, cost, at(when));
      const Decision taken = bucket.apply(copy, Operation::take, cost, at(when));
      CHECK(peeked.verdict == taken.verdict);
      CHECK(peeked.retry_after == taken.retry_after);
      if (taken.verdict == Verdict::ok) CHECK(peeked.remaining == taken.remaining + cost);
    }
  }
  BucketState untouched;
  static_cast<void>(bucket.apply(untouched, Operation::take, 5, at(0s)));
  CHECK(is_same_bytes(state, untouched));
}

TEST_CASE("token bucket: a clock that steps back grants nothing and does not move the state back") {
  const TokenBucket bucket = bucket_of(10, 1s, 3);
  BucketState state;
  CHECK(bucket.apply(state, Operation::take, 3, at(5s)).verdict == Verdict::ok);
  CHECK(bucket.apply(state, Operation::take, 1, at(4s)).verdict == Verdict::limited);
  CHECK(bucket.apply(state, Operation::take, 1, at(5s)).verdict == Verdict::limited);
  CHECK(bucket.apply(state, Operation::take, 1, at(5100ms)).verdict == Verdict::ok);
  CHECK(bucket.apply(state, Operation::take, 1, at(-5s)).verdict == Verdict::limited);
  CHECK(state.last == at(5100ms));
  CHECK(bucket.apply(state, Operation::take, 1, at(5200ms)).verdict == Verdict::ok);
}

TEST_CASE("token bucket: a key that still has permits gives them to a clock that is behind") {
  const TokenBucket bucket = bucket_of(10, 1s, 3);
  BucketState state;
  CHECK(bucket.apply(state, Operation::take, 1, at(5s)).verdict == Verdict::ok);
  CHECK(bucket.apply(state, Operation::take, 1, at(4s)).verdict == Verdict::ok);
  CHECK(state.last == at(5s));
  CHECK(bucket.apply(state, Operation::take, 1, at(4s)).verdict == Verdict::ok);
  CHECK(bucket.apply(state, Operation::take, 1, at(5099ms)).verdict == Verdict::limited);
  CHECK(bucket.apply(state, Operation::take, 1, at(5100ms)).verdict == Verdict::ok);
}

TEST_CASE("token bucket: fractions are carried, never dropped") {
  // 3/s is a permit every 333333 1/3 µs.
  const TokenBucket bucket = bucket_of(3, 1s, 3);
  BucketState state;
  CHECK(bucket.apply(state, Operation::take, 3, at(0s)).verdict == Verdict::ok);
  for (const auto& [when, verdict] : std::vector<std::pair<Micros, Verdict>>{{333'333us, Verdict::limited},
                                                                             {333'334us, Verdict::ok},
                                                                             {666'666us, Verdict::limited},
                                                                             {666'667us, Verdict::ok},
                                                                             {999'999us, Verdict::limited},
                                                                             {1s, Verdict::ok}}) {
    CAPTURE(when);
    CHECK(bucket.apply(state, Operation::take, 1, at(when)).verdict == verdict);
  }
}

TEST_CASE("token bucket: asking every microsecond loses nothing of a slow rate") {
  const TokenBucket bucket = bucket_of(7, 1ms, 1);
  BucketState state;
  static_cast<void>(bucket.apply(state, Operation::force, 1, at(0us)));
  int admitted = 0;
  for (std::int64_t micro = 1; micro <= 10'000; ++micro)
    if (bucket.apply(state, Operation::take, 1, at(Micros{micro})).verdict == Verdict::ok) ++admitted;
  // A burst of one holds no fraction beyond it, so one permit comes every 143 µs.
  CHECK(admitted == 10'000 / 143);
}

TEST_CASE("token bucket: more permits than microseconds come back exactly") {
  const TokenBucket bucket = bucket_of(10'000'000, 1s, 1000);
  BucketState state;
  CHECK(bucket.unit() == 1);
  CHECK(bucket.refill() == 10);
  CHECK(bucket.apply(state, Operation::take, 1000, at(0us)).reset_after == 100us);
  CHECK(bucket.apply(state, Operation::take, 11, at(1us)) ==
        Decision{Verdict::limited, 1000, 10, 1us, 99us, 100us, 1us});
  CHECK(bucket.apply(state, Operation::take, 10, at(1us)).verdict == Verdict::ok);
}

TEST_CASE("token bucket: count and period are reduced by their greatest common divisor") {
  const TokenBucket bucket = bucket_of(1'000'000, 24h, 1'000'000);
  CHECK(bucket.unit() == 86'400);
  CHECK(bucket.refill() == 1);
  CHECK(bucket.full() == 86'400'000'000);
  CHECK(bucket.window() == 24h);
  CHECK(bucket.rate() == Rate{1'000'000, 24h});
  CHECK(bucket_of(3, 1s, 10).window() == 3'333'334us);  // never earlier than exact
}

TEST_CASE("token bucket: what cannot be counted exactly is refused") {
  CHECK_FALSE(TokenBucket::make({0, 1s}, 1));
  CHECK_FALSE(TokenBucket::make({-1, 1s}, 1));
  CHECK_FALSE(TokenBucket::make({1, 0us}, 1));
  CHECK_FALSE(TokenBucket::make({1, -1us}, 1));
  CHECK_FALSE(TokenBucket::make({1, 1s}, 0));
  CHECK_FALSE(TokenBucket::make({1, 1s}, -1));
  CHECK_FALSE(TokenBucket::make({kLargest, Micros{kLargest - 1}}, kLargest));

  CHECK(TokenBucket::make({1, 1us}, kMaxUsed - 1));
  CHECK_FALSE(TokenBucket::make({1, 1us}, kMaxUsed));
  CHECK(TokenBucket::make({1, Micros{std::int64_t{1} << 40}}, 4095));
  CHECK_FALSE(TokenBucket::make({1, Micros{std::int64_t{1} << 40}}, 4096));
  CHECK(TokenBucket::make({kMaxUsed - 1, 1us}, 1));
  CHECK_FALSE(TokenBucket::make({kMaxUsed, 1us}, 1));

  // Even in whole seconds.
  auto refused = TokenBucket::make({99'999'989, 24h * 364}, kMaxUsed / 1000);
  CHECK(refused.error().code == Error::Code::bad_request);
  CHECK(refused.error().message.find("2^52") != std::string::npos);
}

TEST_CASE("token bucket: the largest bucket that can be counted works to its last permit") {
  const TokenBucket bucket = bucket_of(1, 1us, kMaxUsed - 1);
  BucketState state;
  CHECK(bucket.apply(state, Operation::take, kMaxUsed - 1, at(0us)).remaining == 0);
  CHECK(bucket.apply(state, Operation::take, 1, at(0us)).retry_after == 1us);
  CHECK(bucket.apply(state, Operation::take, 1, at(1us)).verdict == Verdict::ok);
  CHECK(bucket.apply(state, Operation::take, kMaxUsed - 1, at(1us)).retry_after == Micros{kMaxUsed - 1});
}

TEST_CASE("token bucket: after any idle time it is full, however large the product of time and rate is") {
  const TokenBucket bucket = bucket_of(10'000'000, 1s, 1000);
  for (const Micros idle : {Micros{24h * 3650}, Micros{std::int64_t{1} << 53}, Micros{kLargest}}) {
    BucketState state;
    static_cast<void>(bucket.apply(state, Operation::take, 1000, at(0us)));
    CHECK(bucket.apply(state, Operation::peek, 1000, at(idle)) ==
          Decision{Verdict::ok, 1000, 1000, 0us, 0us, 100us, 0us});
  }
}

TEST_CASE("token bucket: a refund gives back up to full, and nothing to a key that nobody knows") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  BucketState state;
  CHECK(bucket.apply(state, Operation::refund, 3, at(0s)) ==
        Decision{Verdict::ok, 10, 10, 0us, 0us, 1s, 0us});
  CHECK_FALSE(state.exists());
  static_cast<void>(bucket.apply(state, Operation::take, 5, at(0s)));
  CHECK(bucket.apply(state, Operation::refund, 3, at(0s)).remaining == 8);
  CHECK(bucket.apply(state, Operation::refund, kLargest, at(0s)).remaining == 10);
  CHECK(bucket.apply(state, Operation::take, 10, at(0s)).verdict == Verdict::ok);
  CHECK(bucket.apply(state, Operation::take, 1, at(0s)).verdict == Verdict::limited);
}

TEST_CASE("token bucket: a refund does not swallow what time has given back") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  BucketState state;
  static_cast<void>(bucket.apply(state, Operation::take, 10, at(0s)));
  CHECK(bucket.apply(state, Operation::refund, 1, at(550ms)).remaining == 6);
  CHECK(bucket.apply(state, Operation::peek, 7, at(600ms)).verdict == Verdict::ok);
}

TEST_CASE("token bucket: force is never refused and stops at empty") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  BucketState state;
  CHECK(bucket.apply(state, Operation::force, 4, at(0s)) ==
        Decision{Verdict::ok, 10, 6, 0us, 400ms, 1s, 100ms});
  CHECK(bucket.apply(state, Operation::force, 9, at(0s)).remaining == 0);
  CHECK(bucket.apply(state, Operation::force, 9, at(0s)) == Decision{Verdict::ok, 10, 0, 0us, 1s, 1s, 100ms});
  CHECK(bucket.apply(state, Operation::force, kLargest, at(500ms)) ==
        Decision{Verdict::ok, 10, 0, 0us, 1s, 1s, 100ms});
  CHECK(state.used == bucket.full());
}

TEST_CASE("token bucket: a lowered burst waits until use has come down, and force never lessens use") {
  const TokenBucket large = bucket_of(10, 1s, 100), small = bucket_of(10, 1s, 10);
  BucketState state;
  static_cast<void>(large.apply(state, Operation::take, 100, at(0s)));
  CHECK(small.apply(state, Operation::take, 1, at(0s)) ==
        Decision{Verdict::limited, 10, 0, 9100ms, 10s, 1s, 9100ms});
  const BucketState before = state;
  CHECK(small.apply(state, Operation::force, 5, at(0s)).verdict == Verdict::ok);
  CHECK(state.used == before.used);
  CHECK(small.apply(state, Operation::take, 0, at(0s)).verdict == Verdict::ok);
  CHECK(small.apply(state, Operation::take, 1, at(9'099'999us)).verdict == Verdict::limited);
  CHECK(small.apply(state, Operation::take, 1, at(9100ms)).verdict == Verdict::ok);
}

TEST_CASE("token bucket: a raised burst gives what was not used") {
  const TokenBucket small = bucket_of(10, 1s, 10), large = bucket_of(10, 1s, 100);
  BucketState state;
  static_cast<void>(small.apply(state, Operation::take, 10, at(0s)));
  CHECK(large.apply(state, Operation::peek, 90, at(0s)).verdict == Verdict::ok);
  CHECK(large.apply(state, Operation::peek, 91, at(0s)).verdict == Verdict::limited);
}

TEST_CASE("token bucket: use counted in another unit is converted, rounded up by less than a unit") {
  // 100/s counts in 1/10000 permits, 101/s in millionths.
  const TokenBucket from = bucket_of(100, 1s, 100), to = bucket_of(101, 1s, 100);
  CHECK(from.unit() == 10'000);
  CHECK(to.unit() == 1'000'000);
  BucketState state;
  static_cast<void>(from.apply(state, Operation::take, 7, at(0s)));
  static_cast<void>(from.apply(state, Operation::take, 1, at(1us)));
  CHECK(state.used == 80'000 - 1);
  to.advance(state, at(1us));
  CHECK(state.unit == 1'000'000);
  CHECK(state.used == 7'999'900);

  from.advance(state, at(1us));
  CHECK(state.used == 79'999);
  state = {1'000'000, 7'999'901, at(1us)};
  from.advance(state, at(1us));
  CHECK(state.used == 80'000);  // the rest of 99.01 units rounds up
}

TEST_CASE("token bucket: conversion refills the time since at the reader's own rate") {
  const TokenBucket fast = bucket_of(100, 1s, 100), slow = bucket_of(1, 1s, 100);
  BucketState state;
  static_cast<void>(fast.apply(state, Operation::take, 100, at(0s)));
  CHECK(slow.apply(state, Operation::peek, 1, at(1s)).remaining == 1);
  CHECK(fast.apply(state, Operation::peek, 1, at(1s)).remaining == 100);
}

TEST_CASE("token bucket: a state that goes through many units and back mints nothing") {
  const std::vector<TokenBucket> buckets = {bucket_of(3, 1s, 50), bucket_of(7, 1min, 50),
                                            bucket_of(11, 1h, 50), bucket_of(1000, 24h, 50),
                                            bucket_of(999, 1s, 50)};
  BucketState state;
  static_cast<void>(buckets[0].apply(state, Operation::take, 33, at(0s)));
  const double used_before = static_cast<double>(state.used) / static_cast<double>(state.unit);
  for (int round = 0; round < 1000; ++round)
    buckets[static_cast<std::size_t>(round * 7) % buckets.size()].advance(state, at(0s));
  const double used_after = static_cast<double>(state.used) / static_cast<double>(state.unit);
  CHECK(used_after == used_before);  // whole permits survive every unit
}

TEST_CASE("token bucket: a rest whose product doubles cannot hold counts as a whole permit") {
  // The Lua script computes rest * unit in doubles, so both sides round where 2^53 is passed.
  const std::int64_t from = (std::int64_t{1} << 45) + 1;
  const TokenBucket to = bucket_of(1, Micros{1 << 20}, 10);
  BucketState state{from, 1, at(0s)};
  to.advance(state, at(0s));
  CHECK(state.used == 1);  // 2^20 is exact, and rounds up to one unit
  state = {from, std::int64_t{1} << 34, at(0s)};
  to.advance(state, at(0s));
  CHECK(state.used == to.unit());
}

TEST_CASE("token bucket: use beyond what can be counted saturates and stays so") {
  const TokenBucket bucket = bucket_of(1, 24h, 10);
  for (const std::int64_t used : {kMaxUsed / 86'400'000'000 + 1, std::int64_t{1} << 40, kMaxUsed}) {
    BucketState state{1, used, at(0s)};
    bucket.advance(state, at(0s));
    CHECK(state.used == kMaxUsed);
    CHECK(bucket.apply(state, Operation::take, 1, at(0s)).verdict == Verdict::limited);
    CHECK(bucket.apply(state, Operation::take, 10, at(0s)).retry_after == Micros{kMaxUsed});
    CHECK(bucket.apply(state, Operation::force, 10, at(0s)).remaining == 0);
    CHECK(state.used == kMaxUsed);
  }
}

TEST_CASE("token bucket: the numbers of a decision follow from the use alone") {
  const TokenBucket bucket = bucket_of(10, 1s, 10);
  CHECK(bucket.describe(0, 1, Verdict::ok) == Decision{Verdict::ok, 10, 10, 0us, 0us, 1s, 0us});
  CHECK(bucket.describe(1, 1, Verdict::ok) == Decision{Verdict::ok, 10, 9, 0us, 1us, 1s, 1us});
  CHECK(bucket.describe(bucket.full(), 4, Verdict::limited) ==
        Decision{Verdict::limited, 10, 0, 400ms, 1s, 1s, 100ms});
  CHECK(bucket.describe(bucket.full() * 2, 1, Verdict::limited) ==
        Decision{Verdict::limited, 10, 0, 1100ms, 2s, 1s, 1100ms});
  CHECK(bucket.describe(0, 11, Verdict::never).retry_after == kNever);
  CHECK(bucket.time_to_full(0) == 0us);
  CHECK(bucket.time_to_full(1) == 1us);
  CHECK(bucket_of(3, 1s, 3).time_to_full(4) == 2us);
}

}  // namespace
}  // namespace allowd::limiter
