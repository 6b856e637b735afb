// SPDX-License-Identifier: MIT
//
// Keeps an application from waiting for an agent that does not answer: after three timeouts in a row calls
// fail at once for a second, then one call probes.
//
// Pure: time is an argument.
#pragma once

#include <chrono>
#include <optional>

namespace allowd::client {

class Breaker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static constexpr int kTimeoutsToOpen = 3;
  static constexpr std::chrono::seconds kOpenFor{1};

  // Whether a call may be tried. While open, the first that asks after a second is the probe.
  [[nodiscard]] bool lets_through(TimePoint now);
  // How long until a probe is let through; the whole second when it is not open.
  [[nodiscard]] std::chrono::microseconds probe_in(TimePoint now) const;
  void on_timeout(TimePoint now);
  // The agent answered, or there is none: waiting is not the trouble.
  void on_other_end();

 private:
  int timeouts_ = 0;
  std::optional<TimePoint> open_until_;
};

}  // namespace allowd::client
