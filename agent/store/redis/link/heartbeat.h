// SPDX-License-Identifier: MIT
//
// Counts the agents that share a server: each says in one sorted set that it lives, and reads how many do.
//
// A beat follows at once when the link comes up, another within three seconds (after a start of many agents
// the first one sees few of them), then one every ten seconds, give or take two. It names this agent with the
// shard's time, lets the set live for a minute, and counts who has been named within 30 s (and for no time
// that far ahead); the first of every three beats removes the others. All in one write: the server runs it as
// one, so the set is never without a TTL.
//
// A larger count is believed at once, a smaller one when it has stayed so for 30 s: a set that was lost with
// the server's data fills again meanwhile. What is known is kept while the link is down.
//
// Failure    A server that refuses (rights, another type of value) leaves the number unknown; a line in the
//            log says so once. A value of another type is deleted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <string>

#include "agent/loop/timer.h"
#include "agent/store/redis/link/link.h"

namespace allowd::store {

// How many agents there are, from what the set's sizes were.
class AgentCount {
 public:
  static constexpr limiter::Micros kRemembered = std::chrono::seconds(30);

  void add(std::uint32_t size, SteadyTime now);
  // The largest of the last 30 s before the last reading; none: there was none.
  [[nodiscard]] std::optional<std::uint32_t> agents() const;

 private:
  struct Reading {
    std::uint32_t size;
    SteadyTime at;
  };
  std::deque<Reading> readings_;  // falling sizes: a later one that is as large makes the earlier pointless
};

class Heartbeat {
 public:
  struct Options {
    // Which set that is now, wherever the server keeps it; empty: none. Null: it is always none.
    std::function<std::string()> key;
    std::string id;  // of this agent; no two alike
    std::uint64_t random_seed = 0;
  };

  // `link` outlives it.
  Heartbeat(loop::Loop& loop, Link& link, Options options);

  // The link has come up.
  void begin();
  // Takes this agent off the set, if the server can be asked just now, and beats no more.
  void leave();

  [[nodiscard]] std::optional<std::uint32_t> agents() const { return count_.agents(); }
  // Values that were no sorted set, and were deleted.
  [[nodiscard]] std::uint64_t healed() const { return healed_total_; }

 private:
  void beat();
  void on_count(const Reply& reply);
  void report(const Reply& error);

  loop::Loop& loop_;
  Link& link_;
  const Options options_;
  AgentCount count_;
  std::uint32_t beats_ = 0;
  bool has_left_ = false;
  bool is_foreign_ = false;  // the value is of another type
  bool has_reported_ = false;
  std::uint64_t healed_total_ = 0;
  std::mt19937_64 random_;
  loop::Timer timer_;
};

}  // namespace allowd::store
