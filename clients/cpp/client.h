// SPDX-License-Identifier: MIT
//
// Asks the agent from C++: one call, or many in one write, each with a deadline. Behaves as clients/README.md
// says that every client does.
//
// Threads    May be shared: one connection, lent to one call at a time; waiting for it counts against the
// deadline. Fork       A child that inherits a Client gets a connection of its own with its first call.
// Errors     Nothing throws but std::bad_alloc. A call that could not be answered is decided by
// `Options::fail`, is
//            marked `degraded`, and carries the problem; a mistake of the caller's is never allowed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/connection.h"
#include "clients/cpp/problem.h"
#include "protocol/client_message.h"
#include "protocol/value.h"

namespace allowd::client {

struct Options {
  std::string socket_path;                    // empty: searched for at each connect, see find_socket()
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
  std::string source;  // "client" when `Options::fail` decided
  std::string tier;
  std::uint64_t window_us = 0;
  std::uint64_t more_after_us = 0;
  bool degraded = false;           // the agent could not be asked: `Options::fail` decided
  std::optional<Problem> problem;  // why, or the caller's mistake
};

class Client {
 public:
  static constexpr std::size_t kMaxBatch = 1024;

  explicit Client(Options options = {});
  ~Client();

  Decision allow(const Query& query);
  Decision peek(const Query& query);
  // All in one write, decisions in the order of the queries, one deadline for all. More than kMaxBatch
  // queries are refused as the caller's mistake.
  std::vector<Decision> allow_batch(std::span<const Query> queries);
  // As one request, which the agent decides at once: `each` by itself, or `all` or none charged. It is
  // answered as a whole: every decision carries the problem if there is one. At most protocol::kMaxItems
  // queries.
  enum class Mode : std::uint8_t { each, all };
  std::vector<Decision> allow_many(std::span<const Query> queries, Mode mode = Mode::each);
  // Gives back what was taken; the decision is as after it. A degraded one gave nothing back, as far as is
  // known.
  Decision refund(const Query& query);

  [[nodiscard]] std::optional<Problem> ping();
  // The agent's report, or the problem. Asked on a connection of its own.
  [[nodiscard]] std::optional<Problem> info(protocol::Value& report);
  [[nodiscard]] std::optional<Problem> stats(protocol::Value& report);

  // Where the next connection would go.
  [[nodiscard]] std::string socket_path() const;

 private:
  using TimePoint = Connection::TimePoint;
  struct Shared;  // what calls share, under a lock
  class Turn;     // one call's hold on it

  std::vector<Decision> ask(std::string_view method, std::span<const Query> queries);
  std::optional<Problem> exchange(Turn& turn, std::string_view method, std::span<const Query> queries,
                                  std::vector<Decision>& decisions);
  std::optional<Problem> exchange_many(Turn& turn, std::span<const Query> queries, Mode mode,
                                       std::vector<Decision>& decisions);
  // Sends a request and gives its result to `read`, which says whether it is one.
  using ReadResult = std::function<bool(std::span<const std::byte> result)>;
  std::optional<Problem> ask_one(Turn& turn, std::uint32_t id, const protocol::ByteBuffer& request,
                                 std::size_t cap, const ReadResult& read);
  std::optional<Problem> fetch(std::string_view method, std::size_t cap, protocol::Value& report);
  [[nodiscard]] Decision by_policy(const Problem& problem, std::chrono::microseconds probe_in) const;

  Options options_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace allowd::client
