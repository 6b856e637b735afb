// SPDX-License-Identifier: MIT
//
// A whole server on two sockets in a temporary directory, over a fake store, and clients that are plain
// sockets turned by the same loop.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/io/server.h"
#include "protocol/caps.h"
#include "protocol/client_message.h"
#include "tests/support/bytes.h"
#include "tests/support/encode.h"
#include "tests/support/fake_store.h"
#include "tests/support/printing.h"
#include "tests/support/raw_socket.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::testing {

// A reply as a client sees it; the strings are its own.
struct SeenReply {
  std::uint64_t msgid = 0;
  std::string error;
  std::string result;  // encoded

  [[nodiscard]] protocol::ReceivedDecision decision() const {
    protocol::Cursor cursor(as_bytes(result));
    protocol::ReceivedDecision read;
    REQUIRE(protocol::read_decision(cursor, read));
    return read;
  }
};

class Client {
 public:
  Client(loop::Loop& loop, const std::string& path) : loop_(loop), socket_(RawSocket::connect_to(path)) {
    REQUIRE(socket_.is_open());
  }

  // Sends all of it, turning the loop while the socket is full.
  void send(std::string_view bytes) {
    turn_until(loop_, [&] {
      const long sent = socket_.send(bytes);
      REQUIRE(sent >= 0);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      return bytes.empty();
    });
  }
  // Sends what the socket takes now; the number of bytes, -1 when the connection is broken.
  long send_some(std::string_view bytes) const { return socket_.send(bytes); }

  // Turns the loop until so many replies have come.
  std::vector<SeenReply> replies(std::size_t count) {
    std::vector<SeenReply> seen;
    turn_until(loop_, [&] {
      receive();
      while (seen.size() < count) {
        auto reply = take_reply();
        if (!reply) break;
        seen.push_back(std::move(*reply));
      }
      REQUIRE((seen.size() == count || is_open_));
      return seen.size() == count;
    });
    return seen;
  }
  SeenReply reply() { return replies(1).at(0); }
  // Takes off what has come by now, without turning the loop, and says how many replies that were.
  std::size_t replies_so_far() {
    receive();
    std::size_t count = 0;
    while (take_reply()) ++count;
    return count;
  }
  SeenReply ask(std::string_view bytes) {
    send(bytes);
    return reply();
  }

  // Turns the loop until an empty line ends an answer of the admin socket, which is given without it.
  std::string answer() {
    std::size_t end = std::string::npos;
    turn_until(loop_, [&] {
      receive();
      end = received_.find("\n\n");
      REQUIRE((end != std::string::npos || is_open_));
      return end != std::string::npos;
    });
    std::string text = received_.substr(0, end + 1);
    received_.erase(0, end + 2);
    return text;
  }

  // Turns the loop until the server has closed; what came before is kept.
  void wait_for_close() {
    turn_until(loop_, [&] {
      receive();
      return !is_open_;
    });
  }
  // Whether the server has closed by now.
  bool is_closed() {
    receive();
    return !is_open_;
  }
  // What was received and not taken off as replies.
  const std::string& rest() {
    receive();
    return received_;
  }
  void end_sending() const { socket_.end_sending(); }
  void close() { socket_.close(); }

 private:
  void receive() { is_open_ = is_open_ && socket_.receive(received_); }
  std::optional<SeenReply> take_reply() {
    const auto reply = protocol::read_reply(as_bytes(received_), protocol::kMaxReportBytes);
    REQUIRE(reply.kind != protocol::Reply::Kind::violation);
    if (reply.kind == protocol::Reply::Kind::incomplete) return std::nullopt;
    SeenReply seen{reply.msgid, std::string(reply.error), std::string(as_text(reply.result))};
    received_.erase(0, reply.size);
    return seen;
  }

  loop::Loop& loop_;
  RawSocket socket_;
  std::string received_;
  bool is_open_ = true;
};

struct ServerScene {
  static constexpr const char* kConfig = R"(
    [limits.open]
    rate = "10/s"
    [limits.closed]
    rate = "10/s"
    on_failure = "deny"
  )";

  explicit ServerScene(FakeStore::Mode mode = FakeStore::Mode::grant, std::size_t max_connections = 1024) {
    fake.mode = mode;
    io::Server::Options options;
    options.app.path = app_path;
    options.admin.path = admin_path;
    options.max_connections = max_connections;
    server.emplace(loop, options, decider, reporter, commands);
    registry.add_source(*server);
    registry.add_source(decider);
    registry.add_source(fake);
  }
  void open() {
    auto problem = server->open();
    if (problem) FAIL(problem->message);
  }
  Client client() { return Client(loop, app_path); }
  Client admin() { return Client(loop, admin_path); }

  double metric(std::string_view name) const {
    const auto metrics = registry.metrics();
    const auto found =
        std::find_if(metrics.begin(), metrics.end(), [&](const auto& each) { return each.name == name; });
    REQUIRE(found != metrics.end());
    return found->value;
  }
  // Turns until the store has been asked so often.
  void wait_for_questions(std::size_t count) {
    turn_until(loop, [&] { return fake.asked.size() >= count; });
  }

  TemporaryDirectory directory;
  std::string app_path = directory / "a.sock";
  std::string admin_path = directory / "a.admin.sock";
  loop::Loop loop;
  config::Config config = *config::parse_config(kConfig, "f");
  stats::Registry registry;
  decide::LimitTable table{config, registry};
  FakeStore fake;
  FakeStore host;
  decide::Decider decider{fake, host, table, registry};
  admin::ConfigStatus status{.hash = "00c0ffee00c0ffee", .generation = 1, .reload_error = ""};
  admin::Reporter reporter{"0.1.0", status, table, fake, registry, loop.now()};
  admin::Commands commands{reporter, table, decider, nullptr};
  std::optional<io::Server> server;
};

// An allow of one for a key, with a deadline in microseconds when one is given.
[[nodiscard]] inline std::string allow_bytes(std::uint32_t msgid, std::string_view limit,
                                             std::optional<std::uint64_t> deadline_us = std::nullopt) {
  protocol::ByteBuffer out;
  protocol::QueryArgument query;
  query.method = "allow";
  query.limit.name = limit;
  query.key = "user-1";
  query.deadline_us = deadline_us;
  protocol::write_query(out, msgid, query);
  return std::string(out.view());
}
[[nodiscard]] inline std::string plain_bytes(std::uint32_t msgid, std::string_view method) {
  protocol::ByteBuffer out;
  protocol::write_plain_request(out, msgid, method);
  return std::string(out.view());
}

}  // namespace allowd::testing
