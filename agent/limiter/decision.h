// SPDX-License-Identifier: MIT
//
// What arithmetic says about one cost: may it pass, and if not, when?
#pragma once

#include <cstdint>
#include <string_view>

#include "agent/limiter/time.h"

namespace allowd::limiter {

enum class Verdict : std::uint8_t {
  ok,
  limited,  // refused now; passes after retry_after
  never,    // above capacity: waiting does not help
  shadow,   // would have been refused, by what only watches: the numbers are the refusal's
};

[[nodiscard]] constexpr std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok: return "ok";
    case Verdict::limited: return "limited";
    case Verdict::never: return "never";
    case Verdict::shadow: return "shadow";
  }
  return "";
}

inline constexpr Micros kNever{-1};

struct Decision {
  Verdict verdict = Verdict::ok;
  std::int64_t capacity = 0;   // permits when full
  std::int64_t remaining = 0;  // whole permits left
  Micros retry_after{0};       // 0 when ok, kNever when never
  Micros reset_after{0};       // until full
  Micros window{0};            // a window's length, or a bucket's time from empty to full
  Micros more_after{0};        // the retry that a cost of remaining + 1 would get; 0 when full
  std::uint8_t tier = 0;       // index of the deciding tier in its definition

  bool operator==(const Decision&) const = default;
};

[[nodiscard]] constexpr bool is_allowed(const Decision& decision) {
  return decision.verdict == Verdict::ok || decision.verdict == Verdict::shadow;
}

// What is done with a cost.
enum class Operation : std::uint8_t {
  take,    // all of it or nothing
  peek,    // would take pass? changes nothing
  refund,  // gives back, up to full
  force,   // takes whatever is left of it, never refused
};

// All values that are counted stay below this: the largest number to which doubles, Redis's Lua's only ones,
// add exactly. Use above it is counted as it.
inline constexpr std::int64_t kMaxUsed = std::int64_t{1} << 52;

struct Rate {
  std::int64_t count = 1;  // permits per period
  Micros period{1};

  bool operator==(const Rate&) const = default;
};

}  // namespace allowd::limiter
