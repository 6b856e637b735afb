// SPDX-License-Identifier: MIT
#include "agent/decide/local_shares.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "tests/sim/random_limits.h"
#include "tests/support/fake_store.h"
#include "tests/support/printing.h"

namespace allowd::decide {
namespace {

using namespace std::chrono_literals;
using limiter::Definition;
using limiter::DefinitionPtr;
using limiter::FixedWindow;
using limiter::Micros;
using limiter::Operation;
using limiter::TokenBucket;
using limiter::Verdict;
using store::SteadyTime;
using Outcome = LocalShares::Outcome;

constexpr SteadyTime at(Micros since_start) { return SteadyTime{1'000'000s + since_start}; }

DefinitionPtr bucket(std::int64_t count, Micros period, std::int64_t burst) {
  return *Definition::make({{"", *TokenBucket::make({count, period}, burst), false}}, false);
}

struct Scene {
  explicit Scene(DefinitionPtr definition, std::size_t max_keys = 1000)
      : limit(std::move(definition)), shares(fake, max_keys) {}

  store::Question about(const std::string& key, std::int64_t cost = 1,
                        Operation operation = Operation::take) const {
    return {
        .operation = operation, .definition = limit.get(), .limit_tag = "n3:api:", .key = key, .cost = cost};
  }
  Verdict ask(Micros now, std::int64_t cost = 1, std::int64_t agents = 1, const std::string& key = "k") {
    const auto answer = shares.decide(about(key, cost), agents, at(now));
    REQUIRE(answer);
    last = *answer;
    return answer->decision.verdict;
  }
  int passed(Micros now, int tries, std::int64_t agents = 1, const std::string& key = "k") {
    int count = 0;
    for (int i = 0; i < tries; ++i) count += ask(now, 1, agents, key) == Verdict::ok ? 1 : 0;
    return count;
  }
  // What is debited, 0 if nothing is; charged at once.
  std::int64_t debited(Micros now, const std::string& key = "k") {
    const auto debit = shares.begin_debit(about(key), at(now));
    if (!debit) return 0;
    shares.end_debit(debit->number, Outcome::charged, at(now));
    return debit->permits;
  }
  double metric(std::string_view name) const {
    std::vector<stats::Metric> metrics;
    LocalShares::collect(&shares, metrics);
    for (const stats::Metric& metric : metrics) {
      if (metric.name == "local_share_" + std::string(name)) return metric.value;
    }
    FAIL("no such metric");
    return 0;
  }

  testing::FakeStore fake;
  DefinitionPtr limit;
  LocalShares shares;
  store::Answer last;
};

TEST_CASE("local shares: each agent has the rate and the burst over their number") {
  Scene scene(bucket(100, 1s, 200));
  CHECK(scene.passed(0s, 100, 4) == 50);
  CHECK(scene.last.decision.retry_after == 40ms);
  CHECK(scene.last.decision.capacity == 50);
  CHECK(scene.passed(1s, 100, 4) == 25);
  CHECK(scene.metric("decisions_total") == 200);
}

TEST_CASE("local shares: a share begins with its part of what is left, rounded down") {
  for (const auto& [left, mine] : {std::pair{200, 50}, {199, 49}, {20, 5}, {3, 0}, {0, 0}}) {
    Scene scene(bucket(1, 1h, 200));
    scene.fake.left[0] = left;
    CHECK(scene.passed(0s, 100, 4) == mine);
  }
}

TEST_CASE("local shares: of tiers each begins with what is left of it, and one that is unknown is full") {
  Scene scene(*Definition::make({{"s", *TokenBucket::make({5, 1h}, 5), false},
                                 {"d", *FixedWindow::make({100, 24h}, FixedWindow::Align::first), false}},
                                false));
  scene.fake.left[1] = 3;
  CHECK(scene.passed(0s, 10) == 3);
  CHECK(scene.last.decision.tier == 1);
  scene.fake.left = {4, std::nullopt};
  CHECK(scene.passed(0s, 10, 1, "other") == 4);
  CHECK(scene.last.decision.tier == 0);
}

TEST_CASE("local shares: what was used here is debited, and what was used before is not") {
  Scene scene(bucket(1, 1h, 10));
  scene.fake.left[0] = 6;
  CHECK(scene.passed(0s, 3) == 3);
  CHECK(scene.debited(1s) == 3);
  CHECK(scene.debited(1s) == 0);
  CHECK_FALSE(scene.shares.is_empty());  // it is held for a while
  CHECK(scene.debited(4s) == 0);
  CHECK(scene.shares.is_empty());
  CHECK(scene.metric("debits_total") == 1);
  CHECK(scene.metric("debited_permits_total") == 3);
}

TEST_CASE("local shares: what has come back since is not debited") {
  Scene scene(bucket(1, 1s, 10));
  CHECK(scene.passed(0s, 10) == 10);
  // The store's bucket was full and stayed so: of these ten, four have come back in both.
  CHECK(scene.debited(4s) == 6);
  CHECK(scene.passed(10s, 10) == 10);
  CHECK(scene.debited(20s) == 0);
  CHECK(scene.shares.is_empty());
  // A part of a permit that is still missing is a whole one.
  CHECK(scene.passed(30s, 1) == 1);
  CHECK(scene.debited(30s + 1us) == 1);
}

TEST_CASE("local shares: what others had used comes back here, too, while it comes back in the store") {
  Scene scene(bucket(1, 1s, 10));
  scene.fake.left[0] = 2;  // in the store full again after 8 s
  CHECK(scene.passed(0s, 10) == 2);
  CHECK(scene.passed(4s, 10) == 4);
  // The store believes in 8 of 10, of which these 6 are taken.
  CHECK(scene.debited(6s) == 6);
}

TEST_CASE("local shares: of tiers the most that any is short of is debited") {
  Scene scene(*Definition::make(
      {{"s", *TokenBucket::make({5, 1s}, 5), false}, {"d", *TokenBucket::make({100, 24h}, 100), false}},
      false));
  for (int second = 0; second < 4; ++second) CHECK(scene.passed(second * 1s, 5) == 5);
  CHECK(scene.debited(10s) == 20);
}

TEST_CASE("local shares: a key whose share is full again starts anew from what is known then") {
  Scene scene(bucket(1, 1s, 10));
  CHECK(scene.passed(0s, 4) == 4);
  scene.fake.left[0] = 3;
  CHECK(scene.passed(1min, 20) == 3);
}

TEST_CASE("local shares: a debit that was not asked is kept, one whose fate is unknown is not repeated") {
  Scene scene(bucket(1, 1h, 10));
  CHECK(scene.passed(0s, 4) == 4);
  auto debit = scene.shares.begin_debit(scene.about("k"), at(1s));
  REQUIRE(debit);
  CHECK(debit->permits == 4);
  CHECK_FALSE(scene.shares.begin_debit(scene.about("k"), at(1s)));  // while it is under way
  scene.shares.end_debit(debit->number, Outcome::unasked, at(1s));
  debit = scene.shares.begin_debit(scene.about("k"), at(2s));
  REQUIRE(debit);
  CHECK(debit->permits == 4);
  scene.shares.end_debit(debit->number, Outcome::unknown, at(2s));
  CHECK(scene.debited(3s) == 0);
  CHECK(scene.metric("debits_total") == 0);
  CHECK(scene.metric("debits_unknown_total") == 1);
}

TEST_CASE("local shares: for three seconds after the store is back a key has to pass its share, too") {
  Scene scene(bucket(1, 1s, 10));
  CHECK(scene.passed(0s, 5, 2) == 5);
  const auto hold = [&](Micros now, std::int64_t cost, Operation operation = Operation::take) {
    return scene.shares.hold(scene.about("k", cost, operation), at(now));
  };
  CHECK_FALSE(hold(1s, 1));  // the store has not been asked yet
  CHECK(scene.debited(2s) == 4);
  CHECK_FALSE(hold(2s, 1, Operation::peek));
  CHECK_FALSE(hold(2s, 1));
  const auto refusal = hold(2s, 1);
  REQUIRE(refusal);
  CHECK(refusal->decision.verdict == Verdict::limited);
  CHECK(refusal->decision.retry_after == 2s);
  CHECK(hold(2s, 1, Operation::peek));
  CHECK_FALSE(hold(2s, 1, Operation::refund));
  CHECK_FALSE(hold(2s, 0));
  CHECK(hold(2s, 6)->decision.retry_after == 3s);  // more than the share: until the hold ends
  CHECK(scene.debited(2s) == 0);                   // the store has been asked about what passed
  CHECK(hold(5s - 1us, 2));
  CHECK_FALSE(hold(5s, 2));
  // Another outage begins with what is known then.
  scene.fake.left[0] = 8;
  CHECK(scene.passed(5s, 10, 2) == 4);
}

TEST_CASE("local shares: a store that was late once holds nobody to a share") {
  Scene scene(bucket(1, 1h, 10));
  scene.fake.probe_in = 1us;
  CHECK(scene.passed(0s, 20, 5) == 2);
  CHECK(scene.debited(1s) == 2);
  CHECK_FALSE(scene.shares.hold(scene.about("k", 10), at(1s)));
  CHECK(scene.debited(1s) == 0);
  CHECK(scene.shares.is_empty());
}

TEST_CASE("local shares: what is used while a debit is under way is debited next") {
  Scene scene(bucket(1, 1h, 10));
  CHECK(scene.passed(0s, 4) == 4);
  const auto debit = scene.shares.begin_debit(scene.about("k"), at(1s));
  REQUIRE(debit);
  CHECK(scene.passed(1s, 20) == 6);
  scene.shares.end_debit(debit->number, Outcome::charged, at(2s));
  CHECK(scene.debited(2s) == 6);
}

TEST_CASE("local shares: what the store has charged for nobody pays for as much of what was used here") {
  Scene scene(bucket(1, 1h, 10));
  scene.fake.left[0] = 8;
  CHECK(scene.passed(0s, 5) == 5);
  CHECK(scene.shares.take_as_paid(scene.about("k", 2), at(0s), false, at(0s)));
  CHECK_FALSE(
      scene.shares.take_as_paid(scene.about("k", 4), at(0s), false, at(0s)));  // less than that was used
  CHECK_FALSE(scene.shares.take_as_paid(scene.about("other", 1), at(0s), false, at(0s)));
  const auto debit = scene.shares.begin_debit(scene.about("k"), at(0s));
  REQUIRE(debit);
  CHECK(debit->permits == 3);
  CHECK_FALSE(scene.shares.take_as_paid(scene.about("k", 1), at(0s), false, at(0s)));  // it is being debited
  scene.shares.end_debit(debit->number, Outcome::charged, at(0s));
  CHECK_FALSE(scene.shares.take_as_paid(scene.about("k", 1), at(0s), false, at(0s)));
}

TEST_CASE("local shares: a late charge pays for less, the longer ago it was asked") {
  Scene scene(bucket(1, 1s, 10));
  CHECK(scene.passed(4s, 10) == 10);
  CHECK_FALSE(scene.shares.take_as_paid(scene.about("k", 6), at(0s), false, at(4s)));
  CHECK_FALSE(scene.shares.take_as_paid(scene.about("k", 6), at(0s), true, at(4s)));  // 4 of 6 have come back
  CHECK(scene.debited(4s) == 8);
}

TEST_CASE("local shares: peek and cost 0 take nothing, force takes what there is, refund gives back") {
  Scene scene(bucket(1, 1h, 10));
  for (const auto& [cost, operation] : {std::pair{4, Operation::peek}, {0, Operation::take}}) {
    CHECK(scene.shares.decide(scene.about("k", cost, operation), 1, at(0s))->decision.remaining == 10);
    CHECK(scene.shares.is_empty());
  }
  CHECK(scene.shares.decide(scene.about("k", 4, Operation::force), 1, at(0s))->decision.remaining == 6);
  CHECK(scene.shares.decide(scene.about("k", 1, Operation::refund), 1, at(0s))->decision.remaining == 7);
  CHECK(scene.shares.decide(scene.about("k", 99, Operation::force), 1, at(0s))->decision.remaining == 0);
  CHECK(scene.debited(0s) == 10);
}

TEST_CASE("local shares: more than a share can hold is never, for the caller to judge") {
  Scene scene(bucket(1, 1h, 10));
  CHECK(scene.ask(0s, 6, 2) == Verdict::never);
  CHECK(scene.shares.is_empty());
}

TEST_CASE("local shares: another number of agents counts what was used") {
  Scene scene(bucket(1, 1h, 12));
  CHECK(scene.passed(0s, 20, 3) == 4);
  CHECK(scene.passed(0s, 20, 2) == 2);
  CHECK(scene.passed(0s, 20, 4) == 0);
  CHECK(scene.debited(0s) == 6);
}

TEST_CASE("local shares: a limit of another kind starts with what tiers of those names had used") {
  Scene scene(*Definition::make({{"a", *TokenBucket::make({1, 1h}, 10), false}}, false));
  CHECK(scene.passed(0s, 4) == 4);
  scene.limit = *Definition::make(
      {{"b", *TokenBucket::make({1, 1h}, 5), false}, {"a", *TokenBucket::make({1, 1h}, 20), false}}, false);
  CHECK(scene.passed(0s, 30) == 5);
  CHECK(scene.debited(0s) == 9);
}

TEST_CASE("local shares: past the bound new keys have one share in common, and nobody is debited for it") {
  Scene scene(bucket(1, 1h, 10), 3);
  for (const char* key : {"a", "b", "c"}) CHECK(scene.passed(0s, 20, 1, key) == 10);
  int passed = 0;
  for (int i = 0; i < 40; ++i) {
    passed += scene.passed(0s, 1, 1, "new" + std::to_string(i));
    CHECK(scene.last.by_overflow);
  }
  CHECK(passed == 10);
  CHECK(scene.metric("keys") == 4);
  CHECK(scene.debited(0s, "new0") == 0);
  // Those that have a place keep it.
  CHECK(scene.passed(2h, 20, 1, "a") == 2);
  CHECK_FALSE(scene.last.by_overflow);
}

TEST_CASE("local shares: keys leave once their share is full, a few with each question") {
  Scene scene(bucket(1, 1s, 10));
  for (int i = 0; i < 200; ++i) CHECK(scene.passed(0s, 1, 1, "k" + std::to_string(i)) == 1);
  CHECK(scene.metric("keys") == 200);
  for (int i = 0; i < 100; ++i) CHECK_FALSE(scene.shares.begin_debit(scene.about("other"), at(2s)));
  CHECK(scene.metric("keys") == 0);
}

TEST_CASE("local shares: a share that cannot be counted is none") {
  Scene scene(bucket(1, 24h * 400, 1));
  CHECK_FALSE(scene.shares.decide(scene.about("k"), 10'000, at(0s)));
  CHECK(scene.shares.decide(scene.about("k"), 10, at(0s)));
}

TEST_CASE("local shares: of a key that was full each may take one, however many agents there are") {
  Scene scene(bucket(1, 1h, 3));
  scene.fake.left[0] = 3;
  CHECK(scene.passed(0s, 5, 10) == 1);
  scene.fake.left[0] = 2;
  CHECK(scene.passed(0s, 5, 10, "other") == 0);
}

// While the store is away each agent takes from its own share. After the debits the store's level is what it
// would be had it granted all of that itself, but for a permit an agent that capacities are rounded by.
TEST_CASE("local shares: what random agents take in an outage is what the store is told, and no more") {
  sim::Random random(42);
  int taken_in_all = 0;
  for (int round = 0; round < 300; ++round) {
    const limiter::Rate rate{random.of_any_size(50), Micros{random.of_any_size(20'000'000)}};
    const std::int64_t burst = random.of_any_size(200), agents = random.between(1, 6);
    const DefinitionPtr limit = bucket(rate.count, rate.period, burst);
    Micros now{0};
    const auto shard_now = [&] { return limiter::TimePoint{at(now).time_since_epoch()}; };
    limiter::TierState store;
    limit->apply({&store, 1}, Operation::force, random.between(0, burst), shard_now());
    limiter::TierState truth = store;
    std::deque<Scene> hosts;
    for (std::int64_t i = 0; i < agents; ++i) hosts.emplace_back(limit);
    std::int64_t taken = 0;
    for (int turn = 0; turn < 100; ++turn) {
      Scene& host = hosts[static_cast<std::size_t>(random.between(0, agents - 1))];
      host.fake.left[0] = limit->apply({&store, 1}, Operation::peek, 0, shard_now()).remaining;
      if (host.ask(now, 1, agents) == Verdict::ok) {
        ++taken;
        limit->apply({&truth, 1}, Operation::force, 1, shard_now());
      }
      now += Micros{random.of_any_size(1 + 2 * rate.period.count() / rate.count)};
    }
    std::int64_t debited = 0;
    for (Scene& host : hosts) {
      const std::int64_t permits = host.debited(now);
      debited += permits;
      limit->apply({&store, 1}, Operation::force, permits, shard_now());
    }
    CHECK(debited <= taken);
    const auto left_in = [&](limiter::TierState state) {
      return limit->apply({&state, 1}, Operation::peek, 0, shard_now()).remaining;
    };
    CHECK(left_in(store) <= left_in(truth) + agents);
    taken_in_all += static_cast<int>(taken);
  }
  CHECK(taken_in_all > 5000);
}

// So many of a permit's thousandths are taken by the next debit; returns what it asked for.
std::int64_t debited_in_part(Scene& scene, Micros now, std::vector<store::Taken> taken) {
  const auto debit = scene.shares.begin_debit(scene.about("k"), at(now));
  if (!debit) return 0;
  scene.shares.note_taken(debit->number, taken);
  scene.shares.end_debit(debit->number, Outcome::charged, at(now));
  return debit->permits;
}

TEST_CASE("local shares: what a debit does not find stays owed, and nothing passes before it is paid") {
  Scene scene(bucket(1, 1h, 10));
  scene.fake.probe_in = 1us;
  CHECK(scene.passed(0s, 6) == 6);
  CHECK(debited_in_part(scene, 1s, {{2'500, 1'000}}) == 6);
  CHECK(scene.metric("debits_short_total") == 1);
  const auto refused = scene.shares.hold(scene.about("k"), at(1s));
  REQUIRE(refused);
  CHECK(refused->decision.verdict == Verdict::limited);
  CHECK(refused->decision.remaining == 0);
  CHECK(refused->decision.retry_after == 1s);
  CHECK(scene.shares.is_held(scene.about("k"), at(100s)));
  // Nothing may have come back yet.
  CHECK(debited_in_part(scene, 1500ms, {{9'000, 1'000}}) == 0);
  CHECK(debited_in_part(scene, 2s, {{0, 1'000}}) == 4);
  CHECK(scene.shares.hold(scene.about("k"), at(100s)));
  // Three and a half are owed, less what has come back to the share since.
  CHECK(debited_in_part(scene, 4s, {{4'000, 1'000}}) == 4);
  CHECK_FALSE(scene.shares.hold(scene.about("k"), at(100s)));
  CHECK_FALSE(scene.shares.is_held(scene.about("k"), at(100s)));
  CHECK(scene.debited(100s) == 0);
  CHECK(scene.metric("debits_short_total") == 2);
}

TEST_CASE("local shares: of tiers each owes what it did not find") {
  Scene scene(*Definition::make({{"s", *TokenBucket::make({8, 1h}, 8), false},
                                 {"d", *FixedWindow::make({100, 24h}, FixedWindow::Align::first), false}},
                                false));
  scene.fake.probe_in = 1us;
  CHECK(scene.passed(0s, 8) == 8);
  CHECK(debited_in_part(scene, 1s, {{3, 1}, {8, 1}}) == 8);
  CHECK(scene.shares.hold(scene.about("k"), at(1s)));
  CHECK(debited_in_part(scene, 2s, {{5, 1}, {5, 1}}) == 5);
  CHECK(scene.debited(3s) == 0);
}

TEST_CASE("local shares: a debt does not outlive the share's refill, and the store's absence has a share") {
  Scene scene(bucket(1, 1h, 10));
  scene.fake.probe_in = 1us;
  CHECK(scene.passed(0s, 6) == 6);
  CHECK(debited_in_part(scene, 1s, {{0, 1}}) == 6);
  scene.fake.probe_in = 250ms;
  CHECK_FALSE(scene.shares.hold(scene.about("k"), at(10s)));
  CHECK(scene.passed(10s, 10) == 4);
  scene.fake.probe_in = 1us;
  CHECK(scene.shares.hold(scene.about("k"), at(11s)));
  CHECK(debited_in_part(scene, 12s, {{0, 1}}) == 10);
  static_cast<void>(scene.shares.begin_debit(scene.about("k"), at(12s + 10h)));
  CHECK_FALSE(scene.shares.hold(scene.about("k"), at(12s + 10h)));
  CHECK(scene.metric("keys") == 0);
}

}  // namespace
}  // namespace allowd::decide
