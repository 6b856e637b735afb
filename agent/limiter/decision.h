// SPDX-License-Identifier: MIT
//
// What arithmetic says about one cost: may it pass, and if not, when?
#pragma once

#include <cstdint>

#include "agent/limiter/time.h"

namespace allowd::limiter {

enum class Verdict : std::uint8_t {
  ok,
  limited,  // refused now; passes after retry_after
  never,    // above capacity: waiting does not help
};

inline constexpr Micros kNever{-1};

struct Decision {
  Verdict verdict = Verdict::ok;
  std::int64_t capacity = 0;   // permits when full
  std::int64_t remaining = 0;  // whole permits left
  Micros retry_after{0};       // 0 when ok, kNever when never
  Micros reset_after{0};       // until full
  Micros window{0};            // from empty to full
  Micros more_after{0};        // the retry that a cost of remaining + 1 would get; 0 when full

  bool operator==(const Decision&) const = default;
};

// What is done with a cost.
enum class Operation : std::uint8_t {
  take,    // all of it or nothing
  peek,    // would take pass? changes nothing
  refund,  // gives back, up to full
  force,   // takes whatever is left of it, never refused
};

}  // namespace allowd::limiter
