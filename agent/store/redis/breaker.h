// SPDX-License-Identifier: MIT
//
// Keeps queries from waiting for a server that does not answer them: after five failures in a row questions
// are refused at once, and one at a time is let through as a probe until one is answered in time.
//
// Failures   What one question learns, another need not: an error reply that refuses, or a connection that is
//            lost with questions on it, counts once however many were under way. Of queries whose deadline
//            has passed one in 10 ms counts, so that a short stall under load is one failure and not a
//            hundred; and only those that had waited for 5 ms at least, since a shorter patience says nothing
//            about the server.
// Probes     The first after 100 ms, then after twice as long each time up to a second, or, once the server
//            has refused for want of a permission, after 30 s: those are granted by people. Each wait is cut
//            by a random part of up to a half of it, so that a fleet does not probe as one.
//
// Pure: time is an argument.
// Source     The circuit breaker of Nygard, "Release It!" (2007).
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string_view>

#include "agent/store/store.h"

namespace allowd::store {

class Breaker {
 public:
  static constexpr int kFailuresToOpen = 5;
  static constexpr limiter::Micros kShortestPatience = std::chrono::milliseconds(5);
  static constexpr limiter::Micros kBetweenTimeouts = std::chrono::milliseconds(10);
  static constexpr limiter::Micros kFirstWait = std::chrono::milliseconds(100);
  static constexpr limiter::Micros kLongestWait = std::chrono::seconds(1);
  static constexpr limiter::Micros kWaitForPermission = std::chrono::seconds(30);

  static constexpr limiter::Micros kProbeIsDue{2};

  enum class State : std::uint8_t {
    closed,   // all questions are let through
    open,     // none is, until the next probe is due
    probing,  // one is under way
  };
  enum class Failure : std::uint8_t {
    refused,        // an error reply, or an answer that is none
    not_permitted,  // an error reply that only people can put right
    lost,           // with the connection
    timed_out,      // nobody waits for the answer any more
  };

  explicit Breaker(std::uint64_t random_seed) : random_(random_seed) {}

  // Whether a question may be asked. While open, the first that asks when the next probe is due is that
  // probe: `on_success` or `on_probe_failed` must follow.
  [[nodiscard]] bool lets_through(SteadyTime now);

  // A question was answered while somebody waited for it.
  void on_success();
  // One failed that is not the probe. These and the next say true when that opened it.
  bool on_failure(Failure why, SteadyTime now);
  // A query was answered otherwise, having waited so long.
  bool on_timeout(limiter::Micros waited, SteadyTime now);
  void on_probe_failed(Failure why, SteadyTime now);

  [[nodiscard]] State state() const { return state_; }
  // Nothing has failed since the last success.
  [[nodiscard]] bool is_untroubled() const { return failures_ == 0; }
  // Until a question would be let through: 1 µs while all are, at least kProbeIsDue else. While a probe is
  // under way, until the next one if it fails by then.
  [[nodiscard]] limiter::Micros next_probe_in(SteadyTime now) const;
  [[nodiscard]] std::uint64_t opens() const { return opens_; }

 private:
  // The next probe is due a random wait from now; the wait after that is longer.
  void schedule_probe(SteadyTime now);

  State state_ = State::closed;
  int failures_ = 0;  // in a row
  limiter::Micros wait_ = kFirstWait;
  SteadyTime next_probe_at_{};
  std::optional<SteadyTime> last_timeout_;
  std::uint64_t opens_ = 0;
  std::mt19937_64 random_;
};

[[nodiscard]] std::string_view name_of(Breaker::State state);

}  // namespace allowd::store
