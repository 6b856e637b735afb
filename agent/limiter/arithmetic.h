// SPDX-License-Identifier: MIT
//
// Integer helpers of the algorithms.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "agent/limiter/time.h"

namespace allowd::limiter {

__extension__ using Wide = __int128;

// Both at least 0, the divisor at least 1. Most rates refill one unit a microsecond: a branch that is always
// right is cheaper than a division.
constexpr std::int64_t ceil_div(std::int64_t dividend, std::int64_t divisor) {
  if (divisor == 1) return dividend;
  return dividend / divisor + (dividend % divisor != 0 ? 1 : 0);
}

// The same, rounded down. What is used up has less left than one permit.
constexpr std::int64_t floor_div(std::int64_t dividend, std::int64_t divisor) {
  if (dividend < divisor) return 0;
  return divisor == 1 ? dividend : dividend / divisor;
}

// The finest of 1, 10, 100, ... µs up to 1 s that divides `period` and that `fits` accepts: limits whose
// integers would be too large are counted in coarser steps of time.
template <class Fits>
std::optional<Micros> finest_tick(Micros period, Fits fits) {
  for (const std::int64_t tick : {1, 10, 100, 1'000, 10'000, 100'000, 1'000'000}) {
    if (period.count() % tick == 0 && fits(Micros{tick})) return Micros{tick};
  }
  return std::nullopt;
}

}  // namespace allowd::limiter
