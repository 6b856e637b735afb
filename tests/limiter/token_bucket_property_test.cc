// SPDX-License-Identifier: MIT
//
// The token bucket against an oracle in exact rationals, and against the promises themselves, on random
// histories. Seeds are fixed.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "agent/limiter/token_bucket.h"
#include "tests/support/exact_bucket.h"
#include "tests/support/printing.h"

namespace allowd::limiter {
namespace {

using namespace std::chrono_literals;
using testing::ExactBucket;
using testing::Wide;

class Histories {
 public:
  explicit Histories(std::uint64_t seed) : random_(seed) {}

  std::int64_t between(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  // Small numbers as often as large ones.
  std::int64_t of_any_size(std::int64_t most) {
    std::int64_t bound = most;
    for (std::int64_t shrink = between(0, 40); shrink > 0 && bound > 1; --shrink) bound /= 2;
    return between(1, std::max<std::int64_t>(1, bound));
  }

  // 1/week to 10^7/s, bursts from 1 to 10^9; only what the arithmetic can hold.
  TokenBucket bucket() {
    constexpr Micros kPeriods[] = {1s, 1s, 10s, 1min, 1h, 24h, 24h * 7, 1ms, 7ms, 1us, 333us};
    while (true) {
      const Rate rate{of_any_size(10'000'000), kPeriods[between(0, std::ssize(kPeriods) - 1)]};
      const std::int64_t burst = between(0, 2) == 0 ? rate.count : of_any_size(1'000'000'000);
      auto made = TokenBucket::make(rate, burst);
      const std::int64_t divisor = std::gcd(rate.count, rate.period.count());
      const Wide full = Wide{burst} * (rate.period.count() / divisor);
      if (full < kMaxUsed) REQUIRE(made);
      if (!made) continue;
      CHECK((made->tick() == 1us) == (full < kMaxUsed));
      if (made->tick() == 1us) return *made;  // what counts in ticks is not exact to the microsecond
    }
  }

  std::int64_t cost(const TokenBucket& bucket) {
    switch (between(0, 9)) {
      case 0: return 0;
      case 1: return bucket.burst();
      case 2: return bucket.burst() + between(1, 3);
      case 3: return between(1, bucket.burst());
      case 4: return 1;
      default: return of_any_size(bucket.burst());
    }
  }

  // The time of the next step: mostly a little later, at times exactly when something comes back, at times
  // long idle, at times back.
  Micros next(Micros now, const Decision& before) {
    switch (between(0, 11)) {
      case 0: return now;
      case 1: return now + 1us;
      case 2: return before.retry_after > 0us ? now + before.retry_after : now;
      case 3: return before.retry_after > 1us ? now + before.retry_after - 1us : now;
      case 4: return now + before.more_after;
      case 5: return now + before.reset_after;
      case 6: return now + Micros{of_any_size(86'400'000'000 * 30)};
      case 7: return now - Micros{of_any_size(3'600'000'000)};
      default:
        return now + Micros{of_any_size(
                         2 * before.window.count() / std::max<std::int64_t>(1, before.capacity) + 1)};
    }
  }

  Operation operation() {
    switch (between(0, 9)) {
      case 0: return Operation::peek;
      case 1: return Operation::refund;
      case 2: return Operation::force;
      default: return Operation::take;
    }
  }

 private:
  std::mt19937_64 random_;
};

std::string describe(const TokenBucket& bucket) {
  return std::to_string(bucket.rate().count) + "/" + std::to_string(bucket.rate().period.count()) +
         "us burst " + std::to_string(bucket.burst());
}

TEST_CASE("token bucket: two hundred thousand random steps decide as exact rationals do") {
  Histories histories(2024);
  int refused = 0, passed = 0;
  for (int history = 0; history < 2000; ++history) {
    const TokenBucket bucket = histories.bucket();
    ExactBucket exact(bucket.rate(), bucket.burst());
    BucketState state;
    Micros now{histories.between(0, 2'000'000'000'000'000)};
    Decision decision = bucket.describe(0, 1, Verdict::ok);
    for (int step = 0; step < 100; ++step) {
      const Operation operation = histories.operation();
      const std::int64_t cost = histories.cost(bucket);
      const Decision expected = exact.apply(operation, cost, TimePoint{now});
      decision = bucket.apply(state, operation, cost, TimePoint{now});
      if (decision != expected) {
        FAIL(describe(bucket) << ", history " << history << " step " << step << ": remaining "
                              << decision.remaining << " for " << expected.remaining << ", retry "
                              << decision.retry_after.count() << " for " << expected.retry_after.count()
                              << ", reset " << decision.reset_after.count() << " for "
                              << expected.reset_after.count());
      }
      ++(decision.verdict == Verdict::ok ? passed : refused);
      now = std::max(0us, histories.next(now, decision));
    }
  }
  // Both kinds of answer were really exercised.
  CHECK(refused > 40'000);
  CHECK(passed > 40'000);
}

TEST_CASE("token bucket: what is asked in line is answered and charged as apply does it") {
  Histories histories(2025);
  int asked = 0, refused = 0;
  for (int history = 0; history < 2000; ++history) {
    const TokenBucket bucket = histories.bucket();
    BucketState state;
    Micros now{histories.between(0, 2'000'000'000'000'000)};
    Decision decision = bucket.describe(0, 1, Verdict::ok);
    for (int step = 0; step < 100; ++step) {
      const Operation operation = histories.operation();
      const std::int64_t cost = histories.cost(bucket);
      const bool is_asked_in_line =
          bucket.counts_exactly(state) && (operation == Operation::take || operation == Operation::peek);
      now = histories.next(now, decision);
      BucketState in_line = state;
      decision = bucket.apply(state, operation, cost, TimePoint{now});
      if (!is_asked_in_line) continue;
      ++asked;
      if (decision.verdict != Verdict::ok) ++refused;
      CAPTURE(describe(bucket));
      CAPTURE(cost);
      REQUIRE(bucket.ask_exactly(in_line, operation, cost, TimePoint{now}) == decision);
      REQUIRE(in_line.unit == state.unit);
      REQUIRE(in_line.used == state.used);
      REQUIRE(in_line.last == state.last);
    }
  }
  CHECK(asked > 100'000);
  CHECK(refused > 10'000);
}

TEST_CASE("token bucket: every wait it states is exact to the microsecond") {
  Histories histories(7);
  const auto passes = [](const TokenBucket& bucket, BucketState state, std::int64_t cost, TimePoint when) {
    return bucket.apply(state, Operation::peek, cost, when).verdict == Verdict::ok;
  };
  int waits = 0;
  for (int history = 0; history < 3000; ++history) {
    const TokenBucket bucket = histories.bucket();
    CAPTURE(describe(bucket));
    BucketState state;
    const TimePoint now{Micros{histories.between(0, 1'000'000'000'000)}};
    for (int i = 0; i < 5; ++i) {
      const std::int64_t cost = histories.cost(bucket);
      const Decision decision = bucket.apply(state, Operation::take, cost, now);
      if (decision.verdict == Verdict::limited) {
        ++waits;
        REQUIRE(decision.retry_after > 0us);
        CHECK(passes(bucket, state, cost, now + decision.retry_after));
        CHECK_FALSE(passes(bucket, state, cost, now + decision.retry_after - 1us));
      }
      if (decision.reset_after > 0us) {
        CHECK(passes(bucket, state, bucket.burst(), now + decision.reset_after));
        CHECK_FALSE(passes(bucket, state, bucket.burst(), now + decision.reset_after - 1us));
        // When not quite one is missing, more than remains is only to be had at full.
        const std::int64_t more = decision.remaining + 1;
        CHECK(passes(bucket, state, more, now + decision.more_after));
        CHECK_FALSE(passes(bucket, state, more, now + decision.more_after - 1us));
      }
    }
  }
  CHECK(waits > 1000);
}

TEST_CASE("token bucket: no interval of any history admits more than burst + rate * T") {
  Histories histories(99);
  for (int history = 0; history < 300; ++history) {
    const TokenBucket bucket = histories.bucket();
    CAPTURE(describe(bucket));
    BucketState state;
    struct Grant {
      Wide at;  // the latest time of a grant by then: a clock that steps back opens no new interval
      std::int64_t cost;
    };
    std::vector<Grant> grants;
    Micros now{histories.between(0, 1'000'000'000'000)}, latest{0};
    for (int step = 0; step < 300; ++step) {
      const std::int64_t cost = histories.cost(bucket);
      const Decision decision = bucket.apply(state, Operation::take, cost, TimePoint{now});
      if (decision.verdict == Verdict::ok && cost > 0) {
        latest = std::max(latest, now);
        grants.push_back({latest.count(), cost});
      }
      now = std::max(0us, histories.next(now, decision));
    }
    for (std::size_t from = 0; from < grants.size(); ++from) {
      Wide sum = 0;
      for (std::size_t to = from; to < grants.size(); ++to) {
        sum += grants[to].cost;
        const Wide span = grants[to].at - grants[from].at;
        const Wide allowed =
            Wide{bucket.burst()} * bucket.rate().period.count() + Wide{bucket.rate().count} * span;
        if (sum * bucket.rate().period.count() > allowed)
          FAIL("grants " << from << " to " << to << " pass the bound");
      }
    }
  }
}

TEST_CASE("token bucket: agents with different definitions of one key cannot mint by taking turns") {
  // Each bound holds for whoever is most generous.
  Histories histories(31);
  for (int history = 0; history < 300; ++history) {
    const TokenBucket buckets[] = {histories.bucket(), histories.bucket()};
    BucketState state;
    Micros now{0};
    Wide sum_of_takes = 0;
    const Wide generous_burst = std::max(buckets[0].burst(), buckets[1].burst());
    for (int step = 0; step < 200; ++step) {
      const TokenBucket& bucket = buckets[histories.between(0, 1)];
      const std::int64_t cost = histories.cost(bucket);
      if (bucket.apply(state, Operation::take, cost, TimePoint{now}).verdict == Verdict::ok)
        sum_of_takes += cost;
    }
    // No time has passed: all takes together fit into the larger burst.
    CHECK(static_cast<double>(sum_of_takes) <= static_cast<double>(generous_burst));
  }
}

TEST_CASE("token bucket: converting use never loses any, and adds less than a permit") {
  Histories histories(5);
  for (int round = 0; round < 20'000; ++round) {
    const TokenBucket from = histories.bucket(), to = histories.bucket();
    BucketState state{from.unit(), histories.between(0, from.full()), TimePoint{0us}};
    const testing::Rational before(state.used, state.unit);
    to.advance(state, TimePoint{0us});
    const testing::Rational after(state.used, state.unit);
    REQUIRE(state.unit == to.unit());
    if (state.used == kMaxUsed) continue;
    CHECK_FALSE(after < before);
    CHECK(after - before < testing::Rational(1));
  }
}

struct Greedy {
  std::string name;
  Rate rate;
};

TEST_CASE("token bucket: a greedy caller gets the ideal number in a day, to within one") {
  for (const Greedy& greedy :
       {Greedy{"3/s", {3, 1s}}, Greedy{"7/s", {7, 1s}}, Greedy{"11/min", {11, 1min}}}) {
    CAPTURE(greedy.name);
    const auto made = TokenBucket::make(greedy.rate, greedy.rate.count);
    REQUIRE(made);
    const TokenBucket bucket = *made;
    BucketState state;
    constexpr Micros kDay = 24h;
    std::int64_t admitted = 0;
    for (Micros now{0}; now <= kDay;) {
      const Decision decision = bucket.apply(state, Operation::take, 1, TimePoint{now});
      if (decision.verdict == Verdict::ok) {
        ++admitted;
      } else {
        now += decision.retry_after;
      }
    }
    const std::int64_t ideal = bucket.burst() + kDay.count() / greedy.rate.period.count() * greedy.rate.count;
    CHECK(std::abs(admitted - ideal) <= 1);
  }
}

}  // namespace
}  // namespace allowd::limiter
