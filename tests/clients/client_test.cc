// SPDX-License-Identifier: MIT
//
// The C++ client against a scripted agent on a real socket.
#include "clients/cpp/client.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "protocol/reply.h"
#include "protocol/request.h"

namespace {

using namespace std::chrono_literals;
using allowd::client::Client;
using allowd::client::Decision;
using allowd::client::Options;
using allowd::client::Problem;
using allowd::client::Query;
using allowd::protocol::ByteBuffer;

// Listens on a socket in a directory of its own and runs a script per connection in a thread.
class FakeAgent {
 public:
  // Gets each request's msgid and key, and appends what to send.
  using Script = std::function<void(const allowd::protocol::Request& request, ByteBuffer& out)>;

  explicit FakeAgent(Script script) : script_(std::move(script)) {
    char name[] = "/tmp/allowd-client-XXXXXX";
    directory_ = ::mkdtemp(name);
    path = directory_ + "/allowd.sock";
    start();
  }
  ~FakeAgent() {
    stop();
    ::rmdir(directory_.c_str());
  }
  void start() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener_, 16) == 0);
    REQUIRE(::pipe(wake_) == 0);
    thread_ = std::thread([this] { serve(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    static_cast<void>(!::write(wake_[1], "x", 1));
    thread_.join();
    for (const int fd : {listener_, wake_[0], wake_[1]}) ::close(fd);
    ::unlink(path.c_str());
  }

  std::string path;
  std::atomic<int> accepted{0};

 private:
  void serve() {
    std::vector<pollfd> fds{{wake_[0], POLLIN, 0}, {listener_, POLLIN, 0}};
    std::vector<std::vector<std::byte>> pending(2);
    while (::poll(fds.data(), fds.size(), -1) > 0 && fds[0].revents == 0) {
      if (fds[1].revents != 0) {
        fds.push_back({::accept(listener_, nullptr, nullptr), POLLIN, 0});
        pending.emplace_back();
        ++accepted;
      }
      for (std::size_t i = 2; i < fds.size(); ++i) {
        if (fds[i].revents != 0) answer(fds[i], pending[i]);
      }
    }
    for (std::size_t i = 2; i < fds.size(); ++i) ::close(fds[i].fd);
  }
  void answer(pollfd& connection, std::vector<std::byte>& pending) {
    std::byte bytes[4096];
    const ssize_t count = ::read(connection.fd, bytes, sizeof bytes);
    if (count <= 0) {
      ::close(std::exchange(connection.fd, -1));
      return;
    }
    pending.insert(pending.end(), bytes, bytes + count);
    ByteBuffer out;
    while (true) {
      const auto message = allowd::protocol::read_message(pending);
      if (message.kind != allowd::protocol::Message::Kind::request) break;
      script_(message.request, out);
      pending.erase(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(message.size));
    }
    static_cast<void>(!::send(connection.fd, out.data(), out.size(), MSG_NOSIGNAL));
  }

  Script script_;
  std::string directory_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::thread thread_;
};

allowd::protocol::Decision allowed_with(std::uint64_t remaining) {
  return {.allowed = true, .limit = 10, .remaining = remaining, .window_us = 1'000'000};
}

// Says how many it has answered in `remaining`, so that a test sees which reply it got.
FakeAgent::Script echo_key_as_remaining() {
  return [](const allowd::protocol::Request& request, ByteBuffer& out) {
    allowd::protocol::write_decision(out, request.msgid,
                                     allowed_with(std::stoul(std::string(request.query.key))));
  };
}

Options options_for(const FakeAgent& agent) { return {.socket_path = agent.path, .timeout = 2s}; }

}  // namespace

TEST_CASE(
    "client: a batch gets its decisions in the order of its queries, whatever the order of the replies") {
  std::vector<std::uint64_t> held;
  FakeAgent agent([&](const allowd::protocol::Request& request, ByteBuffer& out) {
    held.push_back(request.msgid);
    if (held.size() < 3) return;
    for (auto id = held.rbegin(); id != held.rend(); ++id) {
      allowd::protocol::write_decision(out, *id, allowed_with(*id));
    }
    held.clear();
  });
  Client client(options_for(agent));
  for (int round = 0; round < 2; ++round) {
    const std::vector<Query> queries(3, Query{.limit = "api", .key = "k"});
    const auto decisions = client.allow_batch(queries);
    REQUIRE(decisions.size() == 3);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(decisions[i].remaining == static_cast<std::size_t>(round) * 3 + i);
  }
  CHECK(agent.accepted == 1);
}

TEST_CASE("client: a reply that comes too late never answers a later call") {
  std::uint64_t late = ~std::uint64_t{0};
  FakeAgent agent([&](const allowd::protocol::Request& request, ByteBuffer& out) {
    if (request.query.key == "7") {
      late = request.msgid;  // held back until the next request
      return;
    }
    if (late != ~std::uint64_t{0}) allowd::protocol::write_decision(out, late, allowed_with(7));
    late = ~std::uint64_t{0};
    allowd::protocol::write_decision(out, request.msgid, allowed_with(8));
  });
  Client client({.socket_path = agent.path, .timeout = 50ms, .fail = Options::Fail::closed});
  const Decision lost = client.allow({.limit = "api", .key = "7"});
  CHECK_FALSE(lost.allowed);
  CHECK(lost.degraded);
  CHECK(lost.verdict == "unavailable");
  CHECK(lost.source == "client");
  CHECK(lost.retry_after_us > 0);
  REQUIRE(lost.problem);
  CHECK(lost.problem->kind == Problem::Kind::timed_out);
  // A very slow machine may time out here as well, but must never get the 7.
  for (int i = 0; i < 3; ++i) {
    const Decision next = client.allow({.limit = "api", .key = "8"});
    if (!next.degraded) CHECK(next.remaining == 8);
  }
}

TEST_CASE("client: without an agent the policy decides, at once and marked as degraded") {
  Client open({.socket_path = "/nonexistent/allowd.sock", .fail = Options::Fail::open});
  const Decision decision = open.allow({.limit = "api", .key = "k"});
  CHECK(decision.allowed);
  CHECK(decision.degraded);
  REQUIRE(decision.problem);
  CHECK(decision.problem->kind == Problem::Kind::no_agent);
  Client closed({.socket_path = "/nonexistent/allowd.sock", .fail = Options::Fail::closed});
  CHECK_FALSE(closed.allow({.limit = "api", .key = "k"}).allowed);
}

TEST_CASE("client: an agent that was restarted is found again by the next call") {
  FakeAgent agent(echo_key_as_remaining());
  Client client(options_for(agent));
  CHECK(client.allow({.limit = "api", .key = "5"}).remaining == 5);
  agent.stop();
  CHECK(client.allow({.limit = "api", .key = "5"}).degraded);
  agent.start();
  const Decision decision = client.allow({.limit = "api", .key = "6"});
  CHECK_FALSE(decision.degraded);
  CHECK(decision.remaining == 6);
}

TEST_CASE("client: a mistake of the caller's is an error, never allowed by the policy") {
  FakeAgent agent([](const allowd::protocol::Request& request, ByteBuffer& out) {
    const bool is_callers = request.query.key == "mine";
    allowd::protocol::write_error(
        out, request.msgid,
        is_callers ? allowd::protocol::ErrorCode::unknown_limit : allowd::protocol::ErrorCode::overloaded,
        "because");
  });
  Client client({.socket_path = agent.path, .timeout = 2s, .fail = Options::Fail::open});
  const Decision mistake = client.allow({.limit = "nope", .key = "mine"});
  CHECK_FALSE(mistake.allowed);
  CHECK_FALSE(mistake.degraded);
  REQUIRE(mistake.problem);
  CHECK(mistake.problem->code == "unknown_limit");
  CHECK(mistake.problem->text == "because");
  const Decision trouble = client.allow({.limit = "nope", .key = "theirs"});
  CHECK(trouble.allowed);
  CHECK(trouble.degraded);
}

TEST_CASE("client: garbage closes the connection, and the next call gets a new one") {
  int requests = 0;
  FakeAgent agent([&](const allowd::protocol::Request& request, ByteBuffer& out) {
    if (++requests == 1) return out.append("\xc1\xc1\xc1");
    allowd::protocol::write_decision(out, request.msgid, allowed_with(1));
  });
  Client client(options_for(agent));
  const Decision bad = client.allow({.limit = "api", .key = "k"});
  CHECK(bad.degraded);
  CHECK(bad.problem->kind == Problem::Kind::bad_reply);
  CHECK(client.allow({.limit = "api", .key = "k"}).remaining == 1);
  CHECK(agent.accepted == 2);
}

TEST_CASE("client: a forked child asks over a connection of its own and leaves the parent's alone") {
  FakeAgent agent(echo_key_as_remaining());
  Client client(options_for(agent));
  REQUIRE(client.allow({.limit = "api", .key = "1"}).remaining == 1);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_right = client.allow({.limit = "api", .key = "2"}).remaining == 2;
    ::_exit(is_right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(client.allow({.limit = "api", .key = "3"}).remaining == 3);
  CHECK(agent.accepted == 2);
}

TEST_CASE("client: one client may be shared by threads, and each gets its own answers") {
  FakeAgent agent(echo_key_as_remaining());
  Client client({.socket_path = agent.path, .timeout = 5s});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string key = std::to_string(t * 1000 + i);
        if (client.allow({.limit = "api", .key = key}).remaining != std::stoul(key)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(agent.accepted == 1);
}

TEST_CASE("client: after too many abandoned requests the connection is given up") {
  FakeAgent agent([](const allowd::protocol::Request& request, ByteBuffer& out) {
    if (request.query.key == "answer") allowd::protocol::write_decision(out, request.msgid, allowed_with(3));
  });
  Client client({.socket_path = agent.path, .timeout = 50ms});
  const std::vector<Query> silent(65, Query{.limit = "api", .key = "silence"});
  for (const Decision& decision : client.allow_batch(silent)) CHECK(decision.degraded);
  // One time-out only: the breaker is still closed.
  const Decision next = client.allow({.limit = "api", .key = "answer"});
  if (!next.degraded) CHECK(next.remaining == 3);
  CHECK(agent.accepted == 2);
}

TEST_CASE("client: what cannot be sent is the caller's mistake and costs nothing") {
  FakeAgent agent(echo_key_as_remaining());
  Client client(options_for(agent));
  const std::string huge(9000, '1');
  const Decision decision = client.allow({.limit = "api", .key = huge});
  CHECK_FALSE(decision.allowed);
  CHECK_FALSE(decision.degraded);
  REQUIRE(decision.problem);
  CHECK(decision.problem->code == "too_large");
  const std::vector<Query> many(Client::kMaxBatch + 1, Query{.limit = "api", .key = "1"});
  CHECK(client.allow_batch(many).back().problem->code == "too_large");
}

TEST_CASE("client: many are one request, answered by a decision for each in order") {
  int requests = 0;
  bool all_or_none = false;
  FakeAgent agent([&](const allowd::protocol::Request& request, ByteBuffer& out) {
    ++requests;
    all_or_none = request.all_or_none;
    std::vector<allowd::protocol::Decision> decisions;
    for (const auto& item : request.items)
      decisions.push_back(allowed_with(std::stoul(std::string(item.key))));
    allowd::protocol::write_decisions(out, request.msgid, decisions);
  });
  Client client(options_for(agent));
  const std::vector<Query> queries{{.limit = "api", .key = "3"},
                                   {.limit = "own", .key = "1", .rate = "5/s"},
                                   {.limit = "api", .key = "2", .cost = 7}};
  const auto decisions = client.allow_many(queries, Client::Mode::all);
  REQUIRE(decisions.size() == 3);
  CHECK(decisions[0].remaining == 3);
  CHECK(decisions[1].remaining == 1);
  CHECK(decisions[2].remaining == 2);
  CHECK(all_or_none);
  CHECK(client.allow_many(queries).size() == 3);
  CHECK_FALSE(all_or_none);
  CHECK(client.allow_many({}).empty());
  CHECK(requests == 2);
  CHECK(agent.accepted == 1);
}

TEST_CASE("client: many share the fate of their one request") {
  using allowd::protocol::ErrorCode;
  FakeAgent agent([&](const allowd::protocol::Request& request, ByteBuffer& out) {
    const std::string_view key = request.items.front().key;
    if (key == "mine")
      return allowd::protocol::write_error(out, request.msgid, ErrorCode::unknown_limit, "no");
    if (key == "theirs")
      return allowd::protocol::write_error(out, request.msgid, ErrorCode::overloaded, "no");
    if (key == "few") {
      const std::vector<allowd::protocol::Decision> one{allowed_with(1)};
      return allowd::protocol::write_decisions(out, request.msgid, one);
    }
  });
  Client client({.socket_path = agent.path, .timeout = 2s, .fail = Options::Fail::open});
  const auto outcome = [&](std::string_view key) {
    const auto decisions = client.allow_many(std::vector<Query>(2, Query{.limit = "api", .key = key}));
    REQUIRE(decisions.size() == 2);
    CHECK(decisions[0].allowed == decisions[1].allowed);
    CHECK(decisions[1].problem.has_value());
    return decisions[0];
  };
  const Decision mistake = outcome("mine");
  CHECK_FALSE(mistake.allowed);
  CHECK_FALSE(mistake.degraded);
  CHECK(mistake.problem->code == "unknown_limit");
  const Decision trouble = outcome("theirs");
  CHECK(trouble.allowed);
  CHECK(trouble.degraded);
  const Decision garbage = outcome("few");
  CHECK(garbage.degraded);
  CHECK(garbage.remaining == 0);
  CHECK(garbage.problem->kind == Problem::Kind::bad_reply);
  Client hasty({.socket_path = agent.path, .timeout = 50ms, .fail = Options::Fail::closed});
  const std::vector<Query> silence(2, Query{.limit = "api", .key = "silence"});
  for (const Decision& decision : hasty.allow_many(silence)) {
    CHECK_FALSE(decision.allowed);
    CHECK(decision.problem->kind == Problem::Kind::timed_out);
  }
}

TEST_CASE("client: many that cannot be sent are the caller's mistake and cost nothing") {
  Client client({.socket_path = "/nonexistent/allowd.sock"});
  const std::vector<Query> many(257, Query{.limit = "api", .key = "1"});
  CHECK(client.allow_many(many).back().problem->code == "too_large");
  FakeAgent agent([](const allowd::protocol::Request&, ByteBuffer&) {});
  Client connected(options_for(agent));
  const std::string long_key(1000, '1');
  const auto decisions = connected.allow_many(std::vector<Query>(9, Query{.limit = "api", .key = long_key}));
  CHECK(decisions.front().problem->code == "too_large");
  CHECK_FALSE(decisions.front().allowed);
}

TEST_CASE("client: a refund is sent as such, and never allowed when the limit forbids it") {
  FakeAgent agent([](const allowd::protocol::Request& request, ByteBuffer& out) {
    using allowd::protocol::Method;
    if (request.method != Method::refund || request.refusal) return;
    if (request.query.limit == "api")
      return allowd::protocol::write_decision(out, request.msgid,
                                              allowed_with(static_cast<std::uint64_t>(request.query.cost)));
    allowd::protocol::write_error(out, request.msgid, allowd::protocol::ErrorCode::forbidden, "no refunds");
  });
  Client client(options_for(agent));
  CHECK(client.refund({.limit = "api", .key = "k", .cost = 6}).remaining == 6);
  const Decision forbidden = client.refund({.limit = "strict", .key = "k"});
  CHECK_FALSE(forbidden.allowed);
  REQUIRE(forbidden.problem);
  CHECK(forbidden.problem->code == "forbidden");
}
