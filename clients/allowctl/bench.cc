// SPDX-License-Identifier: MIT
#include "clients/allowctl/bench.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "clients/allowctl/output.h"
#include "clients/cpp/connection.h"
#include "protocol/caps.h"
#include "protocol/client_message.h"
#include "protocol/value.h"

namespace allowd::allowctl {
namespace {

using Clock = std::chrono::steady_clock;
using client::Problem;

struct Tally {
  std::uint64_t answered = 0;
  std::uint64_t allowed = 0;
  std::uint64_t errors = 0;
  std::string first_error;
  std::map<std::string, std::uint64_t, std::less<>> by_source;
  std::vector<std::uint32_t> latencies_us;

  void add(const protocol::Reply& reply, Clock::duration latency) {
    ++answered;
    latencies_us.push_back(
        static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(latency).count()));
    protocol::ReceivedDecision decision;
    protocol::Cursor cursor(reply.result);
    if (!reply.error.empty() || !protocol::read_decision(cursor, decision)) {
      if (errors++ == 0) first_error = reply.error.empty() ? "the result is not a decision" : reply.error;
      return;
    }
    allowed += decision.allowed ? 1 : 0;
    auto source = by_source.find(decision.source);
    if (source == by_source.end()) source = by_source.emplace(decision.source, 0).first;
    ++source->second;
  }

  [[nodiscard]] std::uint64_t quantile(double share) {
    if (latencies_us.empty()) return 0;
    const auto rank = static_cast<std::size_t>(share * static_cast<double>(latencies_us.size() - 1));
    const auto place = latencies_us.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(latencies_us.begin(), place, latencies_us.end());
    return *place;
  }
};

// One connection that keeps `depth` queries in flight.
class Lane {
 public:
  Lane(const BenchOptions& options, std::uint64_t& next_query) : options_(options), next_query_(next_query) {
    sent_at_.resize(options.depth);
  }

  [[nodiscard]] client::Connection& connection() { return connection_; }
  [[nodiscard]] std::uint64_t in_flight() const { return in_flight_; }

  [[nodiscard]] std::optional<Problem> fill(std::uint64_t& budget) {
    protocol::ByteBuffer requests;
    const auto now = Clock::now();
    while (in_flight_ < options_.depth && budget > 0) {
      const std::string key = "bench-" + std::to_string(next_query_++ % options_.keys);
      sent_at_[next_id_ % options_.depth] = now;
      protocol::QueryArgument query{.method = "allow",
                                    .limit = {options_.limit, options_.rate, {}},
                                    .key = key,
                                    .cost = options_.cost,
                                    .deadline_us = {}};
      if (options_.burst > 0) query.limit.burst = options_.burst;
      protocol::write_query(requests, next_id_++, query);
      ++in_flight_;
      --budget;
    }
    std::size_t sent = 0;
    return connection_.write(requests.view(), now + options_.timeout, sent);
  }

  [[nodiscard]] std::optional<Problem> take(Tally& tally) {
    std::optional<Problem> problem;
    while (connection_.read_available(problem)) {
    }
    if (problem) return problem;
    const auto now = Clock::now();
    while (true) {
      const auto reply = protocol::read_reply(connection_.received(), protocol::kMaxReplyBytes);
      if (reply.kind == protocol::Reply::Kind::incomplete) return {};
      if (reply.kind == protocol::Reply::Kind::violation) {
        return Problem{Problem::Kind::bad_reply, "", "the agent broke the protocol"};
      }
      tally.add(reply, now - sent_at_[reply.msgid % options_.depth]);
      connection_.drop(reply.size);
      --in_flight_;
    }
  }

 private:
  const BenchOptions& options_;
  std::uint64_t& next_query_;
  client::Connection connection_;
  std::vector<Clock::time_point> sent_at_;  // by msgid modulo depth
  std::uint32_t next_id_ = 0;
  std::uint64_t in_flight_ = 0;
};

void print(Tally& tally, double seconds, bool as_json) {
  using protocol::Value;
  Value::Map sources;
  for (const auto& [name, count] : tally.by_source) sources.emplace_back(name, count);
  const double rate = static_cast<double>(tally.answered) / seconds;
  const std::uint64_t decided = tally.answered - tally.errors;
  const Value report(Value::Map{{"queries", tally.answered},
                                {"seconds", seconds},
                                {"queries_per_second", rate},
                                {"allowed", tally.allowed},
                                {"denied", decided - tally.allowed},
                                {"errors", tally.errors},
                                {"sources", std::move(sources)},
                                {"latency_us", Value::Map{{"p50", tally.quantile(0.5)},
                                                          {"p90", tally.quantile(0.9)},
                                                          {"p99", tally.quantile(0.99)},
                                                          {"p99_9", tally.quantile(0.999)}}}});
  std::printf("%s", as_json ? (report.to_json() + "\n").c_str() : report.to_text().c_str());
  if (tally.errors > 0) std::fprintf(stderr, "allowctl: first error: %s\n", tally.first_error.c_str());
}

int fail(const Problem& problem) {
  std::fprintf(stderr, "allowctl: %s\n", to_line(problem).c_str());
  return exit_code(problem);
}

}  // namespace

int run_bench(const std::string& socket_path, const BenchOptions& options) {
  std::uint64_t next_query = 0;
  std::vector<Lane> lanes;
  lanes.reserve(options.connections);
  std::vector<pollfd> watched;
  for (std::uint64_t i = 0; i < options.connections; ++i) {
    Lane& lane = lanes.emplace_back(options, next_query);
    if (auto problem = lane.connection().connect(socket_path, Clock::now() + options.timeout))
      return fail(*problem);
    watched.push_back({lane.connection().fd(), POLLIN, 0});
  }

  Tally tally;
  const auto start = Clock::now();
  const bool is_counted = options.count > 0;
  std::uint64_t budget = is_counted ? options.count : ~std::uint64_t{0};
  for (Lane& lane : lanes) {
    if (auto problem = lane.fill(budget)) return fail(*problem);
  }
  const auto timeout_ms = std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout).count();
  while (std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.in_flight() > 0; })) {
    const int ready = ::poll(watched.data(), watched.size(), static_cast<int>(timeout_ms));
    if (ready == 0) return fail({Problem::Kind::timed_out, "", "no reply within the timeout"});
    if (!is_counted && Clock::now() - start >= options.duration) budget = 0;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      if (watched[i].revents == 0) continue;
      if (auto problem = lanes[i].take(tally)) return fail(*problem);
      if (auto problem = lanes[i].fill(budget)) return fail(*problem);
    }
  }
  print(tally, std::chrono::duration<double>(Clock::now() - start).count(), options.as_json);
  return tally.errors > 0 ? kAgentError : 0;
}

}  // namespace allowd::allowctl
