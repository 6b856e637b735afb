// SPDX-License-Identifier: MIT
#include "agent/prefilter/level.h"

#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "tests/prefilter/fake_shared_store.h"
#include "tests/sim/random_limits.h"
#include "tests/support/printing.h"

namespace allowd::prefilter {
namespace {

using namespace std::chrono_literals;
using limiter::Decision;
using limiter::DefinitionPtr;
using limiter::Micros;
using limiter::Operation;
using limiter::Tier;
using limiter::TimePoint;
using limiter::Verdict;
using testing::SharedAsked;
using testing::SharedValue;

constexpr Micros kStart = 1'000'000s;
constexpr TimePoint at(Micros since_start) { return TimePoint{kStart + since_start}; }

DefinitionPtr limit_of(limiter::Algorithm algorithm, bool shadow = false) {
  return *limiter::Definition::make({{"", std::move(algorithm), false}}, shadow);
}
limiter::Algorithm bucket(std::int64_t count, Micros period, std::int64_t burst) {
  return *limiter::TokenBucket::make({count, period}, burst);
}

// What the store keeps, and what one host learns of it.
struct Scene {
  Decision ask(const DefinitionPtr& definition, std::int64_t cost, TimePoint now,
               Operation operation = Operation::take) {
    const auto [answer, charged] = testing::decide(value, {operation, definition, "", "", cost}, now, now);
    auto states = answer.states;
    const auto own = std::span(states).first(definition->tiers().size());
    const bool by_states = definition->shape() == limiter::Definition::Shape::bucket ||
                           definition->shape() == limiter::Definition::Shape::tiers;
    if (by_states) static_cast<void>(definition->apply(own, operation, cost, now));
    level = learn(*definition, answer.decision, own, now);
    return answer.decision;
  }
  std::optional<Micros> refused_for(const DefinitionPtr& definition, std::int64_t cost, TimePoint now,
                                    Micros uncertainty = 0us) const {
    const auto refusal = refuse(*definition, level, {}, cost, now, uncertainty);
    if (!refusal) return std::nullopt;
    CHECK(refusal->verdict == (definition->is_shadow() ? Verdict::shadow : Verdict::limited));
    return refusal->retry_after;
  }

  SharedValue value;
  Level level;
};

TEST_CASE("level: of what nothing is known, nothing is refused") {
  const auto limit = limit_of(bucket(10, 1s, 10));
  CHECK_FALSE(refuse(*limit, Level{}, {}, 1, at(0s), 0us).has_value());
}

TEST_CASE("level: a bucket is refused what has not come back, for as long as that takes") {
  const auto limit = limit_of(bucket(10, 1s, 10));
  Scene scene;
  CHECK(scene.ask(limit, 8, at(0s)).remaining == 2);
  CHECK(scene.refused_for(limit, 2, at(0s)) == std::nullopt);
  CHECK(scene.refused_for(limit, 3, at(0s)) == 100ms);
  CHECK(scene.refused_for(limit, 3, at(60ms)) == 40ms);
  CHECK(scene.refused_for(limit, 3, at(100ms) - 1us) == 1us);
  CHECK(scene.refused_for(limit, 3, at(100ms)) == std::nullopt);
  CHECK(scene.refused_for(limit, 10, at(100ms)) == 700ms);
  // What never passes is not its to say.
  CHECK(scene.refused_for(limit, 11, at(100ms)) == std::nullopt);
}

TEST_CASE("level: after a refusal smaller costs still pass") {
  const auto limit = limit_of(bucket(10, 1s, 10));
  Scene scene;
  static_cast<void>(scene.ask(limit, 8, at(0s)));
  CHECK(scene.ask(limit, 5, at(0s)).verdict == Verdict::limited);
  CHECK(scene.refused_for(limit, 5, at(0s)) == 300ms);
  CHECK(scene.refused_for(limit, 2, at(0s)) == std::nullopt);
}

TEST_CASE("level: another's clock may be ahead by both errors, less the permit that it took") {
  const auto limit = limit_of(bucket(10, 1s, 10));  // a permit in 100 ms
  Scene scene;
  static_cast<void>(scene.ask(limit, 10, at(0s)));
  CHECK(scene.refused_for(limit, 1, at(0s), 50ms) == 100ms);
  CHECK(scene.refused_for(limit, 1, at(0s), 60ms) == 80ms);
  CHECK(scene.refused_for(limit, 1, at(0s), 100ms) == std::nullopt);
}

TEST_CASE("level: a fixed window is certain until clocks may differ about its end") {
  const auto limit = limit_of(*limiter::FixedWindow::make({5, 1s}, limiter::FixedWindow::Align::clock));
  Scene scene;
  static_cast<void>(scene.ask(limit, 4, at(200ms)));
  CHECK(scene.refused_for(limit, 1, at(300ms), 10ms) == std::nullopt);
  CHECK(scene.refused_for(limit, 2, at(300ms), 10ms) == 680ms);
  CHECK(scene.refused_for(limit, 2, at(979ms), 10ms) == 1ms);
  CHECK(scene.refused_for(limit, 2, at(980ms), 10ms) == std::nullopt);
}

TEST_CASE("level: a sliding window is refused by its formula") {
  const auto limit = limit_of(*limiter::SlidingWindow::make({10, 1s}));
  Scene scene;
  static_cast<void>(scene.ask(limit, 10, at(500ms)));
  static_cast<void>(scene.ask(limit, 1, at(1s), Operation::peek));
  CHECK(scene.refused_for(limit, 1, at(1s)) == 100ms);
  CHECK(scene.refused_for(limit, 2, at(1100ms)) == 100ms);
  CHECK(scene.refused_for(limit, 1, at(1100ms)) == std::nullopt);
}

TEST_CASE("level: a window that held more, before the limit was lowered, fades faster than a permit a turn") {
  const auto former = limit_of(*limiter::SlidingWindow::make({100, 1s}));
  const auto lowered = limit_of(*limiter::SlidingWindow::make({10, 1s}));
  Scene scene;
  static_cast<void>(scene.ask(former, 100, at(500ms)));
  CHECK(scene.ask(lowered, 7, at(1975ms)).verdict == Verdict::ok);
  CHECK(scene.refused_for(lowered, 2, at(1985ms)) == 5ms);
  // A host 20 ms ahead of us is in the next window, which begins with 7 and the permit that it took.
  SharedValue value = scene.value;
  static_cast<void>(testing::decide(value, {Operation::take, lowered, "", "", 1}, at(2005ms), at(2005ms)));
  const auto truth = testing::decide(value, {Operation::take, lowered, "", "", 2}, at(1985ms), at(1985ms));
  REQUIRE(truth.second == 2);
  CHECK(scene.refused_for(lowered, 2, at(1985ms), 10ms) == std::nullopt);
}

TEST_CASE("level: where permits come back in ticks, one that another took does not make up for a tick") {
  const auto limit = limit_of(bucket(999'983, 1s, 5'000'000'000));  // 9 or 10 permits every 10 µs
  REQUIRE(limit->bucket().tick() == 10us);
  Scene scene;
  static_cast<void>(scene.ask(limit, 5'000'000'000, at(0s)));
  CHECK(scene.refused_for(limit, 12, at(18us)) == 2us);
  SharedValue value = scene.value;
  static_cast<void>(testing::decide(value, {Operation::take, limit, "", "", 1}, at(20us), at(20us)));
  REQUIRE(testing::decide(value, {Operation::take, limit, "", "", 12}, at(18us), at(18us)).second == 12);
  CHECK(scene.refused_for(limit, 12, at(18us), 1us) == std::nullopt);
}

TEST_CASE("level: a log is certain until the first permit returns") {
  const auto limit = limit_of(*limiter::SlidingLog::make({5, 1s}));
  Scene scene;
  static_cast<void>(scene.ask(limit, 2, at(0s)));
  static_cast<void>(scene.ask(limit, 2, at(400ms)));
  CHECK(scene.refused_for(limit, 1, at(500ms)) == std::nullopt);
  CHECK(scene.refused_for(limit, 2, at(500ms)) == 500ms);
  // Cost 4 has to wait for longer, but this host only knows of the first.
  CHECK(scene.refused_for(limit, 4, at(500ms)) == 500ms);
  CHECK(scene.refused_for(limit, 2, at(500ms), 10ms) == 480ms);
  CHECK(scene.refused_for(limit, 2, at(980ms), 10ms) == std::nullopt);
}

TEST_CASE("level: a counter is certain until a millisecond before its window ends") {
  const auto limit = limit_of(*limiter::Counter::make({3, 1s}));
  Scene scene;
  static_cast<void>(scene.ask(limit, 2, at(0s)));
  CHECK(scene.refused_for(limit, 1, at(0s)) == std::nullopt);
  CHECK(scene.refused_for(limit, 2, at(0s)) == 999ms);
  CHECK(scene.refused_for(limit, 2, at(998ms)) == 1ms);
  CHECK(scene.refused_for(limit, 2, at(999ms)) == std::nullopt);
  // Refused hits count too.
  static_cast<void>(scene.ask(limit, 3, at(500ms)));
  CHECK(scene.refused_for(limit, 1, at(500ms)) == 499ms);
}

TEST_CASE("level: of tiers the one that decided is known, and of one that only watches nothing") {
  const auto limit = *limiter::Definition::make(
      {{"second", bucket(10, 1s, 10), false}, {"minute", bucket(12, 60s, 12), false}}, false);
  Scene scene;
  static_cast<void>(scene.ask(limit, 10, at(0s)));
  CHECK(scene.ask(limit, 5, at(1s)).tier == 1);
  const auto refusal = refuse(*limit, scene.level, {}, 5, at(1s), 0us);
  REQUIRE(refusal.has_value());
  CHECK(refusal->tier == 1);
  CHECK(refusal->capacity == 12);
  CHECK(refusal->retry_after == 14s);

  const auto watched = *limiter::Definition::make(
      {{"second", bucket(100, 1s, 100), false}, {"minute", bucket(1, 60s, 1), true}}, false);
  Scene other;
  static_cast<void>(other.ask(watched, 1, at(0s)));
  CHECK(other.ask(watched, 1, at(0s)).verdict == Verdict::shadow);
  CHECK(other.refused_for(watched, 1, at(0s)) == std::nullopt);
}

TEST_CASE("level: a limit in shadow is refused as such") {
  const auto limit = limit_of(bucket(10, 1s, 10), true);
  Scene scene;
  static_cast<void>(scene.ask(limit, 10, at(0s)));
  CHECK(scene.refused_for(limit, 1, at(0s)) == 100ms);
}

TEST_CASE("level: what one bucket's level says in line is what it says as any other level") {
  sim::Random random(12);
  sim::RandomLimits limits(random);
  int refused = 0, passed = 0;
  for (int round = 0; round < 60'000; ++round) {
    const DefinitionPtr limit = limits.any();
    const std::int64_t most = limit->strictest().capacity();
    Scene scene;
    TimePoint now = at(Micros{random.between(0, 86'400'000'000)});
    static_cast<void>(scene.ask(limit, random.one_in(2) ? most : random.of_any_size(most), now));
    if (!is_of_bucket(*limit, scene.level)) continue;
    const Micros refill = refill_interval(limit->tiers()[0]);
    const Micros uncertainty{random.of_any_size(4 * refill.count())};
    const std::int64_t cost = random.of_any_size(2 * most);
    now += Micros{random.of_any_size(2 * limit->tiers()[0].window().count())};
    const Decision in_line = decide_by_bucket(*limit, scene.level, cost, now, uncertainty);
    const Decision general = decide_by_level(*limit, scene.level, {}, cost, now, uncertainty);
    REQUIRE(in_line.verdict == general.verdict);
    if (general.verdict == Verdict::ok) {
      ++passed;
    } else {
      ++refused;
      REQUIRE(in_line == general);
    }
  }
  CHECK(refused > 1'000);
  CHECK(passed > 1'000);
}

TEST_CASE("level: what it refuses the store refuses, though another host was ahead and came first") {
  sim::Random random(11);
  sim::RandomLimits limits(random);
  int refused = 0;
  for (int round = 0; round < 60'000; ++round) {
    const DefinitionPtr used_under = limits.any();
    const DefinitionPtr limit = random.one_in(2) ? limits.changed(*used_under) : used_under;
    if (limit->shape() == limiter::Definition::Shape::counter) continue;  // hosts' clocks do not matter to it
    const Micros refill = refill_interval(limit->tiers()[0]);
    const Micros uncertainty{random.of_any_size(std::min<std::int64_t>(4 * refill.count(), 1'000'000))};
    const auto later = [&] { return Micros{random.of_any_size(3 * limit->tiers()[0].window().count())}; };
    const auto cost = [&] {
      const std::int64_t most = limit->strictest().capacity();
      return random.one_in(3) ? most : random.of_any_size(most);
    };
    Scene scene;
    TimePoint now = at(Micros{random.between(0, 86'400'000'000)});
    for (int i = 0; i < 4; ++i) {
      const std::int64_t most = used_under->strictest().capacity();
      static_cast<void>(scene.ask(used_under, random.one_in(2) ? most : random.of_any_size(most), now));
      now += later();
    }
    static_cast<void>(scene.ask(limit, cost(), now, random.choose({Operation::take, Operation::peek})));
    // Where something comes back is where it can go wrong.
    const std::int64_t wanted = cost();
    const auto told_now = refuse(*limit, scene.level, {}, wanted, now, 0us);
    now += told_now && random.one_in(2)
               ? std::max(0us, told_now->retry_after - Micros{random.of_any_size(3 * uncertainty.count())})
               : Micros{random.of_any_size(2 * refill.count())};
    const auto told = refuse(*limit, scene.level, {}, wanted, now, uncertainty);
    if (!told) continue;
    ++refused;
    SharedValue value = scene.value;
    for (std::int64_t i = random.between(0, 2); i > 0; --i) {
      const TimePoint ahead = now + Micros{random.between(0, 2 * uncertainty.count())};
      const std::int64_t taken = random.one_in(2) ? 1 : cost();
      static_cast<void>(testing::decide(value, {Operation::take, limit, "", "", taken}, ahead, ahead));
    }
    const Decision truth =
        testing::decide(value, {Operation::take, limit, "", "", wanted}, now, now).first.decision;
    const limiter::Rate rate = limit->tiers()[told->tier].rate();
    CAPTURE(round);
    CAPTURE(std::string(name_of(limit->tiers()[told->tier].algorithm)));
    CAPTURE(rate.count);
    CAPTURE(rate.period.count());
    CAPTURE(limit->tiers()[told->tier].capacity());
    CAPTURE(uncertainty.count());
    REQUIRE_FALSE(testing::passes(*limit, truth));
    REQUIRE(told->retry_after <= truth.retry_after);
  }
  CHECK(refused > 10'000);
}

}  // namespace
}  // namespace allowd::prefilter
