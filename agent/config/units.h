// SPDX-License-Identifier: MIT
//
// Durations and rates as people write them. Converted once, here.
//
//   duration  an integer and a unit: us, ms, s (sec, second), m (min, minute), h (hour), d (day), week
//   rate      a count, a slash, and a unit or a duration: 100/s, 5/10s, 1000/day
#pragma once

#include <string>
#include <string_view>

#include "agent/limiter/token_bucket.h"
#include "agent/result/result.h"

namespace allowd::config {

// 1 µs to 400 days: the longest that a key may be remembered.
[[nodiscard]] Result<limiter::Micros> parse_duration(std::string_view text);
[[nodiscard]] Result<limiter::Rate> parse_rate(std::string_view text);

// A text that parses to the same, in the largest unit that divides it.
[[nodiscard]] std::string print(limiter::Micros duration);
[[nodiscard]] std::string print(const limiter::Rate& rate);

}  // namespace allowd::config
