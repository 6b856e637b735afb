// SPDX-License-Identifier: MIT
#include "clients/cpp/client.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "clients/cpp/breaker.h"
#include "clients/cpp/discovery.h"
#include "protocol/caps.h"

namespace allowd::client {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using MaybeProblem = std::optional<Problem>;

// Replies that are still owed to calls given up; with more the connection is closed.
constexpr std::size_t kMaxAbandoned = 64;

Problem bad_reply(std::string_view text) { return {Problem::Kind::bad_reply, "", std::string(text)}; }

Problem callers_mistake(std::string_view code, std::string_view text) {
  return {Problem::Kind::agent_error, std::string(code), std::string(text)};
}

// "code: text" as the agent writes it.
Problem agent_error(std::string_view error) {
  const std::size_t colon = error.find(": ");
  if (colon == std::string_view::npos) return callers_mistake(error, "");
  return callers_mistake(error.substr(0, colon), error.substr(colon + 2));
}

// What the agent may take of the time that is left: the way back needs some of it.
std::uint64_t agents_share(microseconds left) {
  const microseconds margin = std::min(left / 10, microseconds{5'000});
  return static_cast<std::uint64_t>(std::max(left - margin, microseconds{1}).count());
}

bool read_decision(protocol::Cursor& cursor, Decision& decision) {
  protocol::ReceivedDecision received;
  if (!protocol::read_decision(cursor, received)) return false;
  decision.allowed = received.allowed;
  decision.limit = received.limit;
  decision.remaining = received.remaining;
  decision.retry_after_us = received.retry_after_us;
  decision.reset_after_us = received.reset_after_us;
  decision.verdict = received.verdict;
  decision.source = received.source;
  decision.tier = received.tier;
  decision.window_us = received.window_us;
  decision.more_after_us = received.more_after_us;
  return true;
}

Decision to_decision(const protocol::Reply& reply) {
  Decision decision;
  protocol::Cursor cursor(reply.result);
  if (!reply.error.empty()) {
    decision.problem = agent_error(reply.error);
  } else if (!read_decision(cursor, decision)) {
    decision.problem = bad_reply("the result is not a decision");
  }
  return decision;
}

// The decisions of an allow_many, as many as were asked for.
bool read_decisions(std::span<const std::byte> result, std::vector<Decision>& decisions) {
  protocol::Cursor cursor(result);
  std::uint32_t count = 0;
  if (!cursor.read_array(count) || count != decisions.size()) return false;
  return std::all_of(decisions.begin(), decisions.end(),
                     [&](Decision& decision) { return read_decision(cursor, decision); });
}

}  // namespace

struct Client::Shared {
  std::timed_mutex lock;
  pid_t owner = ::getpid();
  Breaker breaker;
  Connection connection;
  std::uint32_t next_id = 0;
  std::size_t abandoned = 0;  // requests on this connection whose replies nobody waits for any more
};

// One call's hold on what is shared: the lock, the connection, the deadline, and what the breaker learns at
// the end.
class Client::Turn {
 public:
  Turn(Client& client) : client_(client), deadline_(Clock::now() + client.options_.timeout) {
    if (client.shared_->owner != ::getpid()) {
      // A forked child: some thread of the parent's may hold the lock for ever. Only the descriptor is let go
      // of.
      client.shared_->connection.close();
      static_cast<void>(client.shared_.release());
      client.shared_ = std::make_unique<Shared>();
    }
    shared_ = client.shared_.get();
    lock_ = std::unique_lock(shared_->lock, deadline_);
  }

  [[nodiscard]] TimePoint deadline() const { return deadline_; }
  [[nodiscard]] Connection& connection() { return shared_->connection; }
  [[nodiscard]] microseconds left() const {
    return std::chrono::duration_cast<microseconds>(deadline_ - Clock::now());
  }
  [[nodiscard]] microseconds probe_in() const { return shared_->breaker.probe_in(Clock::now()); }

  // Whether the call may be tried, and a connection for it.
  MaybeProblem begin() {
    if (!lock_) return Problem{Problem::Kind::timed_out, "", "another thread's call took all the time"};
    if (!shared_->breaker.lets_through(Clock::now())) {
      return Problem{Problem::Kind::suspended, "", "three calls timed out just before"};
    }
    is_tried_ = true;
    return open();
  }

  MaybeProblem send(const protocol::ByteBuffer& requests) {
    std::size_t sent = 0;
    auto problem = connection().write(requests.view(), deadline_, sent);
    // An agent that was restarted leaves us a dead connection. Nothing of the request has left: it may go out
    // anew.
    const bool was_stale = problem && sent == 0 && problem->kind == Problem::Kind::no_agent && !is_new_;
    if (!was_stale) return problem;
    if (problem = open(); problem) return problem;
    return connection().write(requests.view(), deadline_, sent);
  }

  std::uint32_t take_ids(std::size_t count) {
    return std::exchange(shared_->next_id, shared_->next_id + static_cast<std::uint32_t>(count));
  }

  // Reads one reply that belongs to [first, first + count); passes over those of calls given up before.
  MaybeProblem next_reply(std::uint32_t first, std::size_t count, std::size_t cap, protocol::Reply& reply) {
    while (true) {
      reply = protocol::read_reply(connection().received(), cap);
      if (reply.kind == protocol::Reply::Kind::violation) {
        connection().close();
        return bad_reply("the agent broke the protocol");
      }
      if (reply.kind == protocol::Reply::Kind::incomplete) {
        if (auto problem = connection().read_more(deadline_)) return problem;
        continue;
      }
      if (static_cast<std::uint32_t>(reply.msgid) - first < count) return {};
      connection().drop(reply.size);
      if (shared_->abandoned > 0) --shared_->abandoned;
    }
  }

  // `missing`: requests that were sent and not answered.
  void finish(const MaybeProblem& problem, std::size_t missing) {
    if (!is_tried_) return;
    shared_->abandoned += missing;
    const bool is_mid_message = problem && !connection().received().empty();
    if (is_mid_message || shared_->abandoned > kMaxAbandoned) connection().close();
    if (problem && problem->kind == Problem::Kind::timed_out) {
      shared_->breaker.on_timeout(Clock::now());
    } else {
      shared_->breaker.on_other_end();
    }
  }

 private:
  MaybeProblem open() {
    if (connection().is_open()) return {};
    shared_->abandoned = 0;
    is_new_ = true;
    return connection().connect(client_.socket_path(), deadline_);
  }

  Client& client_;
  TimePoint deadline_;
  Shared* shared_ = nullptr;
  std::unique_lock<std::timed_mutex> lock_;
  bool is_tried_ = false;
  bool is_new_ = false;
};

Client::Client(Options options) : options_(std::move(options)), shared_(std::make_unique<Shared>()) {}
Client::~Client() = default;

std::string Client::socket_path() const {
  return options_.socket_path.empty() ? find_socket() : options_.socket_path;
}

Decision Client::allow(const Query& query) { return std::move(ask("allow", {&query, 1}).front()); }
Decision Client::peek(const Query& query) { return std::move(ask("peek", {&query, 1}).front()); }
Decision Client::refund(const Query& query) { return std::move(ask("refund", {&query, 1}).front()); }
std::vector<Decision> Client::allow_batch(std::span<const Query> queries) { return ask("allow", queries); }

std::vector<Decision> Client::ask(std::string_view method, std::span<const Query> queries) {
  std::vector<Decision> decisions(queries.size());
  if (queries.empty()) return decisions;
  if (queries.size() > kMaxBatch) {
    for (Decision& decision : decisions) {
      decision.problem = callers_mistake("too_large", "a batch holds at most 1024 queries");
    }
    return decisions;
  }
  for (Decision& decision : decisions) decision.problem = Problem{Problem::Kind::timed_out, "", "no answer"};
  Turn turn(*this);
  auto problem = turn.begin();
  if (!problem) problem = exchange(turn, method, queries, decisions);
  for (Decision& decision : decisions) {
    if (!decision.problem) continue;
    // A reply that never came shares the call's fate; one that came as an error has its own.
    if (problem && decision.problem->kind != Problem::Kind::agent_error) decision.problem = problem;
    if (!decision.problem->is_callers_mistake()) decision = by_policy(*decision.problem, turn.probe_in());
  }
  return decisions;
}

std::vector<Decision> Client::allow_many(std::span<const Query> queries, Mode mode) {
  std::vector<Decision> decisions(queries.size());
  if (queries.empty()) return decisions;
  if (queries.size() > protocol::kMaxItems) {
    const Problem problem = callers_mistake("too_large", "allow_many takes at most 256 queries");
    for (Decision& decision : decisions) decision.problem = problem;
    return decisions;
  }
  Turn turn(*this);
  auto problem = turn.begin();
  if (!problem) problem = exchange_many(turn, queries, mode, decisions);
  if (!problem) return decisions;
  for (Decision& decision : decisions) {
    decision = problem->is_callers_mistake() ? Decision{} : by_policy(*problem, turn.probe_in());
    decision.problem = problem;
  }
  return decisions;
}

std::optional<Problem> Client::exchange_many(Turn& turn, std::span<const Query> queries, Mode mode,
                                             std::vector<Decision>& decisions) {
  std::vector<protocol::ManyArgument::Item> items;
  for (const Query& query : queries)
    items.push_back({{query.limit, query.rate, query.burst}, query.key, query.cost});
  const std::uint32_t id = turn.take_ids(1);
  protocol::ByteBuffer request;
  protocol::write_many(
      request, id,
      {.items = items, .mode = mode == Mode::all ? "all" : "each", .deadline_us = agents_share(turn.left())});
  if (request.size() > protocol::kMaxRequestBytes) {
    turn.finish({}, 0);
    return callers_mistake("too_large", "the request is over 8192 bytes");
  }
  return ask_one(turn, id, request, protocol::kMaxReplyBytes,
                 [&](std::span<const std::byte> result) { return read_decisions(result, decisions); });
}

std::optional<Problem> Client::exchange(Turn& turn, std::string_view method, std::span<const Query> queries,
                                        std::vector<Decision>& decisions) {
  const std::uint32_t first = turn.take_ids(queries.size());
  const std::uint64_t deadline_us = agents_share(turn.left());
  protocol::ByteBuffer requests;
  std::size_t missing = 0;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const Query& query = queries[i];
    protocol::ByteBuffer request;
    protocol::write_query(request, first + static_cast<std::uint32_t>(i),
                          {.method = method,
                           .limit = {query.limit, query.rate, query.burst},
                           .key = query.key,
                           .cost = query.cost,
                           .deadline_us = deadline_us});
    if (request.size() > protocol::kMaxRequestBytes) {
      decisions[i].problem = callers_mistake("too_large", "the request is over 8192 bytes");
      continue;
    }
    requests.append(request.view());
    ++missing;
  }
  auto problem = missing > 0 ? turn.send(requests) : MaybeProblem{};
  while (!problem && missing > 0) {
    protocol::Reply reply;
    problem = turn.next_reply(first, queries.size(), protocol::kMaxReplyBytes, reply);
    if (problem) break;
    decisions[static_cast<std::uint32_t>(reply.msgid) - first] = to_decision(reply);
    turn.connection().drop(reply.size);
    --missing;
  }
  turn.finish(problem, missing);
  return problem;
}

std::optional<Problem> Client::ping() {
  protocol::Value pong;
  auto problem = fetch("ping", protocol::kMaxReplyBytes, pong);
  const std::string* text = pong.as_string();
  if (!problem && (text == nullptr || *text != "pong")) problem = bad_reply("the answer to ping is not pong");
  return problem;
}

std::optional<Problem> Client::info(protocol::Value& report) {
  // A late megabyte must not reach a small call: a client of its own, for this one question.
  return Client(options_).fetch("info", protocol::kMaxReportBytes, report);
}

std::optional<Problem> Client::stats(protocol::Value& report) {
  return Client(options_).fetch("stats", protocol::kMaxReportBytes, report);
}

std::optional<Problem> Client::fetch(std::string_view method, std::size_t cap, protocol::Value& report) {
  Turn turn(*this);
  if (auto problem = turn.begin()) return problem;
  const std::uint32_t id = turn.take_ids(1);
  protocol::ByteBuffer request;
  protocol::write_plain_request(request, id, method);
  return ask_one(turn, id, request, cap, [&](std::span<const std::byte> result) {
    protocol::Cursor cursor(result);
    return protocol::read_value(cursor, report);
  });
}

std::optional<Problem> Client::ask_one(Turn& turn, std::uint32_t id, const protocol::ByteBuffer& request,
                                       std::size_t cap, const ReadResult& read) {
  auto problem = turn.send(request);
  protocol::Reply reply;
  if (!problem) problem = turn.next_reply(id, 1, cap, reply);
  if (problem) {
    turn.finish(problem, 1);
    return problem;
  }
  if (!reply.error.empty()) {
    problem = agent_error(reply.error);
  } else if (!read(reply.result)) {
    problem = bad_reply("the result is malformed");
  }
  turn.connection().drop(reply.size);
  turn.finish({}, 0);
  return problem;
}

Decision Client::by_policy(const Problem& problem, std::chrono::microseconds probe_in) const {
  Decision decision;
  decision.allowed = options_.fail == Options::Fail::open;
  decision.verdict = decision.allowed ? "ok" : "unavailable";
  decision.retry_after_us = decision.allowed ? 0 : probe_in.count();
  decision.source = "client";
  decision.degraded = true;
  decision.problem = problem;
  return decision;
}

}  // namespace allowd::client
