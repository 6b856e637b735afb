// SPDX-License-Identifier: MIT
#include "agent/limiter/definition.h"

#include <array>
#include <chrono>
#include <map>

#include "tests/support/printing.h"

namespace allowd::limiter {
namespace {

using namespace std::chrono_literals;

TimePoint at(Micros since_epoch) { return TimePoint{since_epoch}; }

template <class Rules>
Rules made(Result<Rules> rules) {
  REQUIRE(rules);
  return *rules;
}
Tier bucket_tier(std::string name, Rate rate, std::int64_t burst, bool shadow = false) {
  return {std::move(name), made(TokenBucket::make(rate, burst)), shadow};
}
Tier window_tier(std::string name, Rate rate, bool shadow = false) {
  return {std::move(name), made(FixedWindow::make(rate, FixedWindow::Align::first)), shadow};
}
DefinitionPtr definition_of(std::vector<Tier> tiers, bool shadow = false) {
  return made(Definition::make(std::move(tiers), shadow));
}

// One key under a definition.
struct Key {
  DefinitionPtr definition;
  std::array<TierState, Definition::kMaxTiers> states{};

  Decision apply(Operation operation, std::int64_t cost, Micros now) {
    return definition->apply(std::span(states).first(definition->tiers().size()), operation, cost, at(now));
  }
  Decision take(std::int64_t cost, Micros now) { return apply(Operation::take, cost, now); }
};

TEST_CASE("definition: a refusal by one tier charges none, and names the longest wait") {
  Key key{definition_of({bucket_tier("second", {10, 1s}, 10), bucket_tier("minute", {15, 1min}, 15)})};
  CHECK(key.take(10, 0s).verdict == Verdict::ok);
  const auto before = key.states;
  const Decision refused = key.take(6, 1s);
  CHECK(refused.verdict == Verdict::limited);
  CHECK(refused.tier == 1);
  CHECK(refused.retry_after == 3s);
  CHECK(key.states == before);
  CHECK(key.take(5, 1s).verdict == Verdict::ok);
}

TEST_CASE("definition: what one tier can never hold outweighs every wait") {
  Key key{definition_of({bucket_tier("slow", {1, 1h}, 100), bucket_tier("small", {1, 1s}, 5)})};
  CHECK(key.take(5, 0s).tier == 1);
  const Decision refused = key.take(6, 0s);
  CHECK(refused.verdict == Verdict::never);
  CHECK(refused.tier == 1);
  CHECK_FALSE(key.definition->can_hold(6));
  CHECK(key.definition->can_hold(5));
  CHECK(&key.definition->strictest() == &key.definition->tiers()[1]);
}

TEST_CASE("definition: of equals the first tier decides") {
  Key key{definition_of({window_tier("a", {3, 1min}), window_tier("b", {3, 1min})})};
  CHECK(key.take(1, 5s).tier == 0);
  CHECK(key.take(3, 5s).tier == 0);
}

TEST_CASE("definition: a shadow tier that would refuse is not charged, stops nothing and is reported") {
  Key key{definition_of({bucket_tier("real", {10, 1s}, 10), bucket_tier("watch", {2, 1min}, 2, true)})};
  CHECK(key.take(2, 0s).verdict == Verdict::ok);
  const TierState watch = key.states[1];
  const Decision watched = key.take(3, 0s);
  CHECK(watched.verdict == Verdict::shadow);
  CHECK(watched.tier == 1);
  CHECK(watched.retry_after == -1us);
  CHECK(key.states[1] == watch);
  CHECK(key.take(1, 0s).retry_after == 30s);
  CHECK(key.states[0].used == 600'000);
  const Decision refused = key.take(9, 0s);
  CHECK(refused.verdict == Verdict::limited);
  CHECK(refused.tier == 0);
}

TEST_CASE("definition: a shadow limit decides as without it, and only the verdict changes") {
  Key real{definition_of({bucket_tier("", {1, 1s}, 3)})},
      watch{definition_of({bucket_tier("", {1, 1s}, 3)}, true)};
  for (const std::int64_t cost : {2, 2, 1, 1, 0, 4}) {
    Decision expected = real.take(cost, 0s);
    if (expected.verdict != Verdict::ok) expected.verdict = Verdict::shadow;
    CHECK(watch.take(cost, 0s) == expected);
    CHECK(watch.states == real.states);
  }
}

TEST_CASE("definition: refund and force touch every tier") {
  Key key{definition_of({bucket_tier("a", {1, 1min}, 5), window_tier("b", {8, 1h})})};
  const Decision forced = key.apply(Operation::force, 7, 5s);
  CHECK(forced.verdict == Verdict::ok);
  CHECK(forced.tier == 0);
  CHECK(forced.remaining == 0);
  CHECK(key.states[1].used == 7);
  CHECK(key.apply(Operation::refund, 2, 5s).remaining == 2);
  CHECK(key.states[1].used == 5);
}

TEST_CASE("definition: shapes keep their state apart") {
  const auto kind = [](Tier tier) { return definition_of({std::move(tier)})->state_kind(); };
  CHECK(kind(bucket_tier("", {5, 1s}, 5)).empty());
  CHECK(kind(bucket_tier("", {9, 1h}, 1)).empty());
  CHECK(kind(bucket_tier("a", {5, 1s}, 5)) == "t");
  CHECK(kind(window_tier("", {5, 1s})) == "t");
  CHECK(kind({"", made(SlidingLog::make({5, 1s})), false}) == "l1000000.");
  CHECK(kind({"", made(Counter::make({5, 1s})), false}) == "c1000000.");
}

TEST_CASE("definition: what names a tier's state is its name, algorithm, alignment and window") {
  CHECK(bucket_tier("x", {5, 1s}, 5).identity() == bucket_tier("x", {9, 1h}, 2).identity());
  std::map<std::string, int> seen;
  for (const Tier& tier : std::initializer_list<Tier>{
           bucket_tier("x", {5, 1s}, 5), bucket_tier("y", {5, 1s}, 5), window_tier("x", {5, 1s}),
           window_tier("x", {5, 2s}),
           Tier{"x", made(FixedWindow::make({5, 1s}, FixedWindow::Align::clock)), false},
           Tier{"x", made(SlidingWindow::make({5, 1s})), false}}) {
    CHECK(++seen[tier.identity()] == 1);
  }
}

// Asks for one permit at a time, at once when the last one passed and else as soon as it was told to.
std::int64_t admitted_in_a_week(const DefinitionPtr& definition) {
  Key key{definition};
  const Micros week = 24h * 7;
  std::int64_t admitted = 0;
  for (Micros now{0}; now < week;) {
    const Decision decision = key.take(1, now);
    if (decision.verdict == Verdict::ok) ++admitted;
    now += decision.retry_after;
  }
  return admitted;
}

TEST_CASE("definition: a greedy caller gets the ideal number in a week, give or take one") {
  const Micros week = 24h * 7;
  for (const Rate rate : {Rate{3, 1s}, Rate{7, 1s}, Rate{11, 1min}, Rate{999'983, 24h}}) {
    const std::int64_t burst = rate.count;
    const std::int64_t ideal = burst + rate.count * (week / rate.period);
    CAPTURE(rate.count);
    CHECK(std::abs(admitted_in_a_week(definition_of({bucket_tier("", rate, burst)})) - ideal) <= 1);
  }
}

TEST_CASE("sliding log: a permit is free a window after it was taken, not before") {
  const auto log = definition_of({{"", made(SlidingLog::make({3, 1min})), false}});
  LogState state;
  for (const Micros now : {0s, 10s, 20s})
    CHECK(log->apply(state, Operation::take, 1, at(now)).verdict == Verdict::ok);
  CHECK(log->apply(state, Operation::take, 1, at(1min - 1us)).retry_after == 1us);
  CHECK(log->apply(state, Operation::take, 1, at(1min)).verdict == Verdict::ok);
  CHECK(log->apply(state, Operation::refund, 5, at(1min)).remaining == 3);
  CHECK(state.empty());
  CHECK(log->apply(state, Operation::force, 9, at(1min)).remaining == 0);
  CHECK(state == LogState{{at(1min), 3}});
  CHECK(log->apply(state, Operation::peek, 4, at(1min)).verdict == Verdict::never);
}

TEST_CASE("counter: refused hits count until the window ends") {
  Key key{definition_of({{"", made(Counter::make({2, 1500us})), false}})};
  CHECK(key.definition->counter().rate().period == 2ms);  // whole milliseconds, up
  CHECK(key.take(1, 0us).remaining == 1);
  CHECK(key.take(2, 100us).verdict == Verdict::limited);
  CHECK(key.states[0].used == 3);
  CHECK(key.take(1, 1999us).retry_after == 1us);
  CHECK(key.take(2, 2ms).verdict == Verdict::ok);
  CHECK(key.take(3, 2ms).verdict == Verdict::never);
  CHECK(key.states[0].used == 2);
  CHECK(key.apply(Operation::refund, 2, 2ms).remaining == 0);
  CHECK(key.apply(Operation::force, 9, 2ms).verdict == Verdict::ok);
}

}  // namespace
}  // namespace allowd::limiter
