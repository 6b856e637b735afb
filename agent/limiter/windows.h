// SPDX-License-Identifier: MIT
//
// Windows that count permits: N in a window of length W.
//
// FixedWindow     starts afresh when W is over. It begins with the first charge, or at multiples of W since
//                 the epoch; then up to 2 N may pass around a boundary, by definition.
// SlidingWindow   clock-aligned; the window before weighs in with the share of it that still lies within W:
//                 prev * (W - e) + (cur + cost) * W <= N * W, e microseconds into the current one.
//
// A clock that steps back counts as the start of the newest window charged: no old window opens again. A
// changed N keeps what was used.
//
// Units      Permits; times in shard microseconds.
// Source     The sliding window counter is Cloudflare's ("How we built rate limiting capable of scaling to
//            millions of domains", 2017), in integers.
#pragma once

#include <cstdint>

#include "agent/limiter/decision.h"
#include "agent/limiter/time.h"
#include "agent/result/result.h"

namespace allowd::limiter {

// What one key has used of a window. All zero: nothing is known of it.
struct WindowState {
  std::int64_t before = 0;  // permits in the window before; of a fixed window 1: it runs, even if it is empty
  std::int64_t count = 0;   // permits in the current window
  TimePoint start{};        // of the current window
};

class FixedWindow {
 public:
  enum class Align : std::uint8_t { first, clock };

  // Fails unless count and period are at least 1 and count is below 2^52.
  static Result<FixedWindow> make(Rate rate, Align align);

  // Applies `operation` to the state and answers. A refused cost changes nothing.
  Decision apply(WindowState& state, Operation operation, std::int64_t cost, TimePoint now) const;

  [[nodiscard]] Rate rate() const { return rate_; }
  [[nodiscard]] Align align() const { return align_; }
  bool operator==(const FixedWindow&) const = default;

 private:
  FixedWindow() = default;
  Rate rate_;
  Align align_ = Align::first;
};

class SlidingWindow {
 public:
  // Fails unless count and period are at least 1 and count * period in ticks stays below 2^52 under some
  // tick.
  static Result<SlidingWindow> make(Rate rate);

  Decision apply(WindowState& state, Operation operation, std::int64_t cost, TimePoint now) const;

  [[nodiscard]] Rate rate() const { return rate_; }
  // Time into the window is rounded down to this; 1 µs unless the integers would not fit.
  [[nodiscard]] Micros tick() const { return tick_; }
  bool operator==(const SlidingWindow&) const = default;

 private:
  SlidingWindow() = default;
  // Brings the state to `now`.
  void advance(WindowState& state, TimePoint now) const;
  [[nodiscard]] bool passes(const WindowState& state, std::int64_t cost, TimePoint now) const;
  // When `cost`, which does not pass now but is at most N, will.
  [[nodiscard]] TimePoint passes_at(const WindowState& state, std::int64_t cost) const;
  [[nodiscard]] Decision describe(const WindowState& state, std::int64_t cost, Verdict verdict,
                                  TimePoint now) const;

  Rate rate_;
  Micros tick_{1};
};

// The start of the window of length `period` that holds `now`, counted from the epoch.
[[nodiscard]] TimePoint aligned_start(TimePoint now, Micros period);

}  // namespace allowd::limiter
