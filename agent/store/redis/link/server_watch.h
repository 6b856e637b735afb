// SPDX-License-Identifier: MIT
//
// Looks once a minute at what makes a server a bad place for limits, and warns: that it may evict keys, that
// it does, that it answers too slowly for the deadline.
//
// Logging    One line when something begins, a reminder every hour while it lasts.
// Errors     What an ACL does not let us ask is not looked at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "agent/store/redis/link/connection.h"

namespace allowd::store {

// What INFO says, as far as it does.
struct ServerReport {
  std::optional<std::string> maxmemory_policy;
  std::optional<std::int64_t> maxmemory;  // bytes; 0: no bound
  std::optional<std::int64_t> evicted_keys;

  // Adds what stands in a section of INFO.
  void read(std::string_view info);
  // Whether Redis may throw keys of ours away when it is full.
  [[nodiscard]] bool may_evict() const;
};

class ServerWatch {
 public:
  static constexpr limiter::Micros kEvery = std::chrono::minutes(1);

  // Whether their 99th percentile is.
  [[nodiscard]] static bool are_slow(const Connection::RoundTrips& trips);

  // Answers should take no longer than half of `deadline`; 0: they may take any time. `name` is for the log.
  ServerWatch(std::string name, limiter::Micros deadline) : name_(std::move(name)), deadline_(deadline) {}

  // A new connection, whose round trips it looks at from now on.
  void begin(Connection& connection);
  // Looks, `kEvery` after the last time; the answers come to the connection, which outlives neither.
  void look(Connection& connection, SteadyTime now);

  [[nodiscard]] std::uint64_t slow_replies() const { return slow_replies_; }

 private:
  // Something that is so or not, told when it begins and every hour.
  class Concern {
   public:
    [[nodiscard]] bool should_tell(bool is_so, SteadyTime now);

   private:
    std::optional<SteadyTime> told_at_;
  };

  void look_at_round_trips(Connection& connection, SteadyTime now);
  void judge(const ServerReport& report, SteadyTime now);

  std::string name_;
  limiter::Micros deadline_;
  std::uint64_t slow_replies_ = 0;
  std::optional<std::int64_t> evicted_before_;
  Concern is_slow_;
  Concern may_evict_;
  Concern evicts_;
};

}  // namespace allowd::store
