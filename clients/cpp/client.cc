// SPDX-License-Identifier: MIT
#include "clients/cpp/client.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "clients/cpp/discovery.h"
#include "protocol/caps.h"

namespace allowd::client {
namespace {

using Clock = std::chrono::steady_clock;

// Replies that are owed to calls given up; beyond, the connection is not worth keeping.
constexpr std::size_t kMaxAbandoned = 1024;
// The agent answers this much before our own deadline, so that its answer is not late.
constexpr std::chrono::microseconds kMargin{2'000};

Problem bad_reply(std::string_view text) { return {Problem::Kind::bad_reply, "", std::string(text)}; }

// "code: text" as the agent writes it.
Problem agent_error(std::string_view error) {
  const std::size_t colon = error.find(": ");
  if (colon == std::string_view::npos) return {Problem::Kind::agent_error, std::string(error), ""};
  return {Problem::Kind::agent_error, std::string(error.substr(0, colon)),
          std::string(error.substr(colon + 2))};
}

Decision to_decision(const protocol::Reply& reply) {
  Decision decision;
  if (!reply.error.empty()) {
    decision.problem = agent_error(reply.error);
    return decision;
  }
  protocol::ReceivedDecision received;
  protocol::Cursor cursor(reply.result);
  if (!protocol::read_decision(cursor, received)) {
    decision.problem = bad_reply("the result is not a decision");
    return decision;
  }
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
  return decision;
}

}  // namespace

Client::Client(Options options) : options_(std::move(options)), owner_pid_(::getpid()) {
  if (options_.socket_path.empty()) options_.socket_path = find_socket();
}

Decision Client::allow(const Query& query) { return std::move(ask("allow", {&query, 1}).front()); }
Decision Client::peek(const Query& query) { return std::move(ask("peek", {&query, 1}).front()); }
std::vector<Decision> Client::allow_batch(std::span<const Query> queries) { return ask("allow", queries); }

std::vector<Decision> Client::ask(std::string_view method, std::span<const Query> queries) {
  std::vector<Decision> decisions(queries.size());
  if (queries.empty()) return decisions;
  for (Decision& decision : decisions) decision.problem = Problem{Problem::Kind::timed_out, "", "no answer"};
  const auto problem = exchange(method, queries, decisions);
  for (Decision& decision : decisions) {
    if (!decision.problem) continue;
    // A reply that never came shares the call's fate; one that came as an error has its own.
    if (problem && decision.problem->kind != Problem::Kind::agent_error) decision.problem = problem;
    if (!decision.problem->is_callers_mistake()) decision = by_policy(*decision.problem);
  }
  return decisions;
}

std::optional<Problem> Client::exchange(std::string_view method, std::span<const Query> queries,
                                        std::vector<Decision>& decisions) {
  const TimePoint now = Clock::now();
  const TimePoint deadline = now + options_.timeout;
  if (!breaker_.lets_through(now))
    return Problem{Problem::Kind::suspended, "", "three calls timed out just before"};
  auto problem = open(deadline);
  const std::uint32_t first = take_ids(queries.size());
  std::size_t missing = queries.size();
  if (!problem) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
    const auto for_agent = std::max(left - std::min(kMargin, left / 4), std::chrono::microseconds{0});
    protocol::ByteBuffer requests;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const Query& query = queries[i];
      protocol::write_query(requests, first + static_cast<std::uint32_t>(i),
                            {.method = method,
                             .limit = {query.limit, query.rate, query.burst},
                             .key = query.key,
                             .cost = query.cost,
                             .deadline_us = static_cast<std::uint64_t>(for_agent.count())});
    }
    problem = send(requests, deadline);
  }
  while (!problem && missing > 0) {
    protocol::Reply reply;
    problem = next_reply(first, queries.size(), protocol::kMaxReplyBytes, deadline, reply);
    if (problem) break;
    Decision& decision = decisions[static_cast<std::uint32_t>(reply.msgid) - first];
    decision = to_decision(reply);
    connection_.drop(reply.size);
    --missing;
  }
  abandoned_ += connection_.is_open() ? missing : 0;
  note_end(problem);
  return problem;
}

std::optional<Problem> Client::ping() {
  protocol::Value pong;
  auto problem = fetch("ping", pong);
  const std::string* text = pong.as_string();
  if (!problem && (text == nullptr || *text != "pong")) problem = bad_reply("the answer to ping is not pong");
  return problem;
}

std::optional<Problem> Client::fetch(std::string_view method, protocol::Value& report) {
  const TimePoint now = Clock::now();
  const TimePoint deadline = now + options_.timeout;
  if (!breaker_.lets_through(now))
    return Problem{Problem::Kind::suspended, "", "three calls timed out just before"};
  auto problem = open(deadline);
  const std::uint32_t id = take_ids(1);
  protocol::ByteBuffer request;
  protocol::write_plain_request(request, id, method);
  if (!problem) problem = send(request, deadline);
  protocol::Reply reply;
  if (!problem) problem = next_reply(id, 1, protocol::kMaxReportBytes, deadline, reply);
  note_end(problem);
  if (problem) {
    abandoned_ += connection_.is_open() ? 1 : 0;
    return problem;
  }
  if (!reply.error.empty()) {
    problem = agent_error(reply.error);
  } else if (protocol::Cursor cursor(reply.result); !protocol::read_value(cursor, report)) {
    problem = bad_reply("the result is malformed");
  }
  connection_.drop(reply.size);
  return problem;
}

std::optional<Problem> Client::open(TimePoint deadline) {
  if (owner_pid_ != ::getpid()) {
    // A forked child: closing its copy of the descriptor leaves the parent's connection alone.
    owner_pid_ = ::getpid();
    connection_.close();
    breaker_ = {};
  }
  if (abandoned_ > kMaxAbandoned) connection_.close();
  if (connection_.is_open()) return {};
  abandoned_ = 0;
  return connection_.connect(options_.socket_path, deadline);
}

std::optional<Problem> Client::send(const protocol::ByteBuffer& requests, TimePoint deadline) {
  std::size_t sent = 0;
  auto problem = connection_.write(requests.view(), deadline, sent);
  // An agent that was restarted leaves us a dead connection. Nothing of the request has left: it may go out
  // anew.
  const bool was_stale = problem && sent == 0 && problem->kind == Problem::Kind::no_agent;
  if (!was_stale) return problem;
  if (problem = open(deadline); problem) return problem;
  return connection_.write(requests.view(), deadline, sent);
}

std::optional<Problem> Client::next_reply(std::uint32_t first, std::size_t count, std::size_t cap,
                                          TimePoint deadline, protocol::Reply& reply) {
  while (true) {
    reply = protocol::read_reply(connection_.received(), cap);
    if (reply.kind == protocol::Reply::Kind::violation) {
      connection_.close();
      return bad_reply("the agent broke the protocol");
    }
    if (reply.kind == protocol::Reply::Kind::incomplete) {
      if (auto problem = connection_.read_more(deadline)) return problem;
      continue;
    }
    const std::uint32_t place = static_cast<std::uint32_t>(reply.msgid) - first;
    if (place < count) return {};
    connection_.drop(reply.size);  // of a call that was given up
    if (abandoned_ > 0) --abandoned_;
  }
}

void Client::note_end(const std::optional<Problem>& problem) {
  if (problem && problem->kind == Problem::Kind::timed_out) {
    breaker_.on_timeout(Clock::now());
  } else {
    breaker_.on_other_end();
  }
}

Decision Client::by_policy(const Problem& problem) const {
  Decision decision;
  decision.allowed = options_.fail == Options::Fail::open;
  decision.verdict = decision.allowed ? "ok" : "unavailable";
  decision.source = "fallback";
  decision.degraded = true;
  decision.problem = problem;
  return decision;
}

std::uint32_t Client::take_ids(std::size_t count) {
  return std::exchange(next_id_, next_id_ + static_cast<std::uint32_t>(count));
}

}  // namespace allowd::client
