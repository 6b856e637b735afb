// SPDX-License-Identifier: MIT
//
// Asks the agent from C++: one call, or many in one write, each with a deadline. Behaves as clients/README.md
// says that every client does.
//
// Threads    One at a time; give each thread its own Client.
// Fork       A child that inherits a Client gets a connection of its own with its first call.
// Errors     Nothing throws. A call that could not be answered is decided by `Options::fail`, says
// `degraded`, and
//            carries the problem; a mistake of the caller's is never allowed.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/breaker.h"
#include "clients/cpp/connection.h"
#include "clients/cpp/problem.h"
#include "protocol/client_message.h"
#include "protocol/value.h"

namespace allowd::client {

struct Options {
  std::string socket_path;                    // empty: found by find_socket()
  std::chrono::microseconds timeout{50'000};  // over connecting, writing and reading together
  enum class Fail : std::uint8_t { open, closed } fail = Fail::open;
};

struct Query {
  std::string_view limit;
  std::string_view key;
  std::uint64_t cost = 1;
  std::string_view rate = {};               // "100/s": defines the limit here; empty: the agent's config does
  std::optional<std::uint64_t> burst = {};  // with `rate`
};

struct Decision {
  bool allowed = false;
  std::uint64_t limit = 0;
  std::uint64_t remaining = 0;
  std::int64_t retry_after_us = 0;  // -1: never
  std::uint64_t reset_after_us = 0;
  std::string verdict;
  std::string source;
  std::string tier;
  std::uint64_t window_us = 0;
  std::uint64_t more_after_us = 0;
  bool degraded = false;           // the agent was not asked or did not answer: `Options::fail` decided
  std::optional<Problem> problem;  // why, or the caller's mistake
};

class Client {
 public:
  explicit Client(Options options = {});

  Decision allow(const Query& query);
  Decision peek(const Query& query);
  // All in one write, decisions in the order of the queries, one deadline for all.
  std::vector<Decision> allow_batch(std::span<const Query> queries);

  [[nodiscard]] std::optional<Problem> ping();
  // The agent's report, or the problem.
  [[nodiscard]] std::optional<Problem> info(protocol::Value& report) { return fetch("info", report); }
  [[nodiscard]] std::optional<Problem> stats(protocol::Value& report) { return fetch("stats", report); }

  [[nodiscard]] const std::string& socket_path() const { return options_.socket_path; }

 private:
  using TimePoint = Connection::TimePoint;

  std::vector<Decision> ask(std::string_view method, std::span<const Query> queries);
  std::optional<Problem> exchange(std::string_view method, std::span<const Query> queries,
                                  std::vector<Decision>& decisions);
  std::optional<Problem> fetch(std::string_view method, protocol::Value& report);
  std::optional<Problem> open(TimePoint deadline);
  std::optional<Problem> send(const protocol::ByteBuffer& requests, TimePoint deadline);
  // Reads one reply that belongs to [first, first + count); passes over those of calls given up before.
  std::optional<Problem> next_reply(std::uint32_t first, std::size_t count, std::size_t cap,
                                    TimePoint deadline, protocol::Reply& reply);
  void note_end(const std::optional<Problem>& problem);
  [[nodiscard]] Decision by_policy(const Problem& problem) const;
  std::uint32_t take_ids(std::size_t count);

  Options options_;
  Connection connection_;
  Breaker breaker_;
  int owner_pid_;
  std::uint32_t next_id_ = 0;
  std::size_t abandoned_ = 0;  // requests on this connection whose replies nobody waits for any more
};

}  // namespace allowd::client
