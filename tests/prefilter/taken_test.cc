// SPDX-License-Identifier: MIT
#include "agent/prefilter/taken.h"

#include <array>
#include <chrono>

#include "tests/support/printing.h"

namespace allowd::prefilter {
namespace {

using namespace std::chrono_literals;
using limiter::Definition;
using limiter::FixedWindow;
using limiter::Micros;
using limiter::Operation;
using limiter::TierState;
using limiter::TimePoint;
using limiter::TokenBucket;
using store::Taken;

constexpr TimePoint at(Micros since) { return TimePoint{1'000'000s + since}; }

TEST_CASE("taken: a force takes what there is, to a part of a permit") {
  const auto limit = *Definition::make({{"", *TokenBucket::make({1, 1s}, 10), false}}, false);
  std::array<TierState, 1> states{};
  static_cast<void>(limit->apply(states, Operation::take, 8, at(0s)));
  const auto before = states;
  static_cast<void>(limit->apply(states, Operation::force, 5, at(500ms)));
  CHECK(taken_between(*limit, before, states, at(500ms)) == std::vector{Taken{2'500'000, 1'000'000}});
  const auto empty = states;
  static_cast<void>(limit->apply(states, Operation::force, 5, at(500ms)));
  CHECK(taken_between(*limit, empty, states, at(500ms)) == std::vector{Taken{0, 1'000'000}});
}

TEST_CASE("taken: of tiers each by itself, windows in whole permits") {
  const auto limit =
      *Definition::make({{"s", *TokenBucket::make({5, 1h}, 5), false},
                         {"d", *FixedWindow::make({100, 24h}, FixedWindow::Align::first), false}},
                        false);
  std::array<TierState, 2> states{};
  static_cast<void>(limit->apply(states, Operation::take, 3, at(0s)));
  const auto before = states;
  static_cast<void>(limit->apply(states, Operation::force, 4, at(0s)));
  const auto taken = taken_between(*limit, before, states, at(0s));
  CHECK(taken[0].units == 2 * taken[0].unit);
  CHECK(taken[1] == Taken{4, 1});
}

}  // namespace
}  // namespace allowd::prefilter
