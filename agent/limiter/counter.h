// SPDX-License-Identifier: MIT
//
// The classic shared counter: a window from the first hit on, and every hit counts, refused ones too. It is
// what costs Redis least; in turn up to 2 N may pass around a boundary, and who never stops asking is never
// let in before the window's end.
//
// Units      Permits; windows are whole milliseconds, rounded up, as Redis's TTLs are.
#pragma once

#include <cstdint>

#include "agent/limiter/decision.h"
#include "agent/limiter/windows.h"
#include "agent/result/result.h"

namespace allowd::limiter {

class Counter {
 public:
  static Result<Counter> make(Rate rate);

  // Applies `operation` to the state and answers. Refunds are not supported and change nothing.
  Decision apply(WindowState& state, Operation operation, std::int64_t cost, TimePoint now) const;

  // The answer about a count as it stands after the operation, in a window that ends in `left`.
  [[nodiscard]] Decision describe(std::int64_t count, Micros left, Operation operation,
                                  std::int64_t cost) const;

  [[nodiscard]] Rate rate() const { return rate_; }
  bool operator==(const Counter&) const = default;

 private:
  Counter() = default;
  Rate rate_;
};

}  // namespace allowd::limiter
