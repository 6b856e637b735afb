// SPDX-License-Identifier: MIT
#include "agent/limiter/share.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "agent/limiter/arithmetic.h"
#include "tests/sim/random_limits.h"
#include "tests/support/printing.h"

namespace allowd::limiter {
namespace {

using namespace std::chrono_literals;

DefinitionPtr limit_of(Algorithm algorithm) {
  return *Definition::make({{"", std::move(algorithm), false}}, false);
}
DefinitionPtr bucket(std::int64_t count, Micros period, std::int64_t burst) {
  return limit_of(*TokenBucket::make({count, period}, burst));
}

// a/b < c/d, of positive numbers below 2^63.
bool is_less(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return Wide{a} * d < Wide{c} * b;
}

// What is promised of one tier's share.
void check_tier(const Tier& whole, const Tier& part, std::int64_t agents) {
  const auto& share = std::get<TokenBucket>(part.algorithm);
  CHECK(part.name == whole.name);
  CHECK(part.shadow == whole.shadow);
  CHECK(share.burst() == std::max<std::int64_t>(1, whole.capacity() / agents));
  const Rate rate = whole.rate(), own = share.rate();
  const Micros period = rate.period * agents;
  CHECK_FALSE(is_less(rate.count, period.count(), own.count, own.period.count()));
  if (!is_less(own.count, own.period.count(), rate.count, period.count())) return;
  // Coarser: by less than one part in its count, and only since the exact one cannot be counted.
  CHECK(is_less(rate.count, period.count(), own.count + 1, own.period.count()));
  CHECK_FALSE(TokenBucket::make({rate.count, period}, share.burst()));
}

TEST_CASE("share: a bucket of the rate and the burst over the number") {
  const DefinitionPtr share = share_of(*bucket(100, 1s, 200), 4);
  REQUIRE(share->shape() == Definition::Shape::bucket);
  CHECK(share->bucket() == *TokenBucket::make({100, 4s}, 50));
  CHECK(*share_of(*bucket(100, 1s, 200), 1) == *bucket(100, 1s, 200));
}

TEST_CASE("share: what does not divide is rounded down, and a permit is left to each") {
  CHECK(share_of(*bucket(100, 1s, 7), 4)->bucket().burst() == 1);
  CHECK(share_of(*bucket(100, 1s, 8), 4)->bucket().burst() == 2);
  CHECK(share_of(*bucket(100, 1s, 3), 4)->bucket().burst() == 1);
  // The rate is not rounded: 1/s shared by 3 is 1 in 3 s.
  CHECK(share_of(*bucket(1, 1s, 1), 3)->bucket().rate() == Rate{1, 3s});
}

TEST_CASE("share: windows, logs and counters become buckets of N over their length") {
  const Rate rate{10, 60s};
  for (const Algorithm& algorithm :
       {Algorithm(*FixedWindow::make(rate, FixedWindow::Align::clock)), Algorithm(*SlidingWindow::make(rate)),
        Algorithm(*SlidingLog::make(rate)), Algorithm(*Counter::make(rate))}) {
    const DefinitionPtr share = share_of(*limit_of(algorithm), 2);
    REQUIRE(share->shape() == Definition::Shape::bucket);
    CHECK(share->bucket() == *TokenBucket::make({10, 120s}, 5));
  }
}

TEST_CASE("share: tiers keep their names, their order and what only watches") {
  const DefinitionPtr whole =
      *Definition::make({{"s", *TokenBucket::make({5, 1s}, 5), true},
                         {"d", *FixedWindow::make({1000, 24h}, FixedWindow::Align::first), false}},
                        true);
  const DefinitionPtr share = share_of(*whole, 5);
  CHECK(share->is_shadow());
  REQUIRE(share->tiers().size() == 2);
  for (std::size_t i = 0; i < 2; ++i) check_tier(whole->tiers()[i], share->tiers()[i], 5);
}

TEST_CASE("share: a rate that cannot be counted exactly is the nearest below") {
  // 999983/day in whole seconds fits; shared by a prime number of agents it does not.
  for (const std::int64_t agents : {2, 3, 7, 64, 9973, 99'991}) {
    const DefinitionPtr whole = bucket(999'983, 24h, 999'983);
    const DefinitionPtr share = share_of(*whole, agents);
    REQUIRE(share);
    check_tier(whole->tiers()[0], share->tiers()[0], agents);
  }
}

TEST_CASE("share: what would take longer than can be counted is none") {
  CHECK(share_of(*bucket(1, 24h * 400, 1), 100));
  CHECK_FALSE(share_of(*bucket(1, 24h * 400, 1), 1000));
}

TEST_CASE("share: more agents than can be are as many as can be") {
  CHECK(*share_of(*bucket(100, 1s, 200), kMostShares + 1) == *share_of(*bucket(100, 1s, 200), kMostShares));
  CHECK(*share_of(*bucket(100, 1s, 200), 0) == *bucket(100, 1s, 200));
}

TEST_CASE("share: of random limits and numbers, every tier keeps what is promised") {
  sim::Random random(20261130);
  sim::RandomLimits limits(random);
  int made = 0, coarse = 0;
  for (int i = 0; i < 20'000; ++i) {
    const DefinitionPtr whole = random.one_in(2) ? limits.any() : [&]() -> DefinitionPtr {
      const Rate rate{random.of_any_size(1'000'000'000'000), Micros{random.of_any_size(34'560'000'000'000)}};
      const auto made_bucket = TokenBucket::make(rate, random.of_any_size(1'000'000'000'000));
      return made_bucket ? limit_of(*made_bucket) : nullptr;
    }();
    if (!whole) continue;
    const std::int64_t agents = random.of_any_size(kMostShares);
    const DefinitionPtr share = share_of(*whole, agents);
    if (!share) continue;
    ++made;
    REQUIRE(share->tiers().size() == whole->tiers().size());
    for (std::size_t tier = 0; tier < whole->tiers().size(); ++tier) {
      const Tier &all = whole->tiers()[tier], &part = share->tiers()[tier];
      check_tier(all, part, agents);
      const Rate rate = all.rate(), own = std::get<TokenBucket>(part.algorithm).rate();
      if (Wide{own.count} * rate.period.count() * agents != Wide{rate.count} * own.period.count()) ++coarse;
    }
  }
  CHECK(made > 10'000);
  CHECK(coarse > 20);
}

TEST_CASE("share: all agents together pass no more than the limit, but for one permit each") {
  sim::Random random(7);
  for (int i = 0; i < 200; ++i) {
    const Rate rate{random.of_any_size(1000), Micros{random.of_any_size(10'000'000)}};
    const std::int64_t burst = random.of_any_size(500), agents = random.between(1, 12);
    const auto whole = TokenBucket::make(rate, burst);
    if (!whole) continue;
    const DefinitionPtr share = share_of(*limit_of(*whole), agents);
    REQUIRE(share);
    std::array<TierState, 12> states{};
    std::int64_t passed = 0;
    Micros now{0};
    for (int turn = 0; turn < 2000; ++turn) {
      auto& state = states[static_cast<std::size_t>(random.between(0, agents - 1))];
      const std::int64_t cost = random.one_in(4) ? random.of_any_size(share->bucket().burst()) : 1;
      const TimePoint at{1'700'000'000s + now};
      if (share->apply({&state, 1}, Operation::take, cost, at).verdict == Verdict::ok) passed += cost;
      // passed <= burst + rate * T + agents
      REQUIRE(Wide{passed - burst - agents} * rate.period.count() <= Wide{now.count()} * rate.count);
      now += Micros{random.of_any_size(1 + 4 * rate.period.count() / rate.count)};
    }
  }
}

}  // namespace
}  // namespace allowd::limiter
