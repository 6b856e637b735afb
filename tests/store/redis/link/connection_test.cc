// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/connection.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/raw_socket.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::store {
namespace {

using namespace std::chrono_literals;
using testing::RawSocket;
using testing::turn_until;

constexpr int kCommands = 1000;
constexpr limiter::Micros kEach = 20us;  // that handing on a reply takes

RedisEndpoint at(const std::string& path) {
  RedisEndpoint endpoint;
  endpoint.unix_path = path;
  return endpoint;
}

// A connection to a peer that answers all commands at once, with replies that each take long to hand on.
struct Scene {
  Scene() {
    bool is_open = false;
    connection.open(addresses, [&] { is_open = true; });
    turn_until(loop, [&] { return is_open; });
    peer = listening.accept();
    REQUIRE(peer.is_open());
    for (int i = 0; i < kCommands; ++i) {
      connection.expect([this](const Reply& reply) {
        if (reply == nullptr) {
          ++unanswered;
          return;
        }
        answers.push_back(reply->integer);
        ++in_this_turn;
        const SteadyTime begun = loop::Loop::exact_now();
        while (loop::Loop::exact_now() - begun < kEach) {
        }
      });
    }
    std::string replies;
    for (int i = 0; i < kCommands; ++i) replies += ":" + std::to_string(i) + "\r\n";
    REQUIRE(peer.send(replies) == static_cast<ssize_t>(replies.size()));
  }

  void check_answers() const {
    REQUIRE(answers.size() == kCommands);
    for (int i = 0; i < kCommands; ++i) REQUIRE(answers[static_cast<std::size_t>(i)] == i);
    CHECK(unanswered == 0);
  }

  testing::TemporaryDirectory directory;
  const std::string path = directory.path() + "/redis.sock";
  const RawSocket listening = RawSocket::listen_at(path);
  loop::Loop loop;
  loop::AddressBook addresses{loop};
  std::optional<Error> closed;
  Connection connection{loop, at(path), [this](Error why) { closed = std::move(why); }};
  RawSocket peer;
  std::vector<long long> answers;
  int unanswered = 0;
  int in_this_turn = 0;
};

TEST_CASE("connection: replies that arrive together are handed on over several turns, in order") {
  Scene scene;
  int turns = 0, most = 0;
  while (scene.answers.size() < kCommands && turns < kCommands) {
    scene.in_this_turn = 0;
    uv_run(scene.loop.raw(), UV_RUN_NOWAIT);
    most = std::max(most, scene.in_this_turn);
    ++turns;
  }
  scene.check_answers();
  // By the clock that the callbacks waste: 0.3 ms, and the reply in which they ended.
  CHECK(most <= 300us / kEach + 1);
  CHECK(!scene.closed);
}

TEST_CASE("connection: replies that waited for another turn are not lost with the connection") {
  Scene scene;
  scene.peer.close();
  turn_until(scene.loop, [&] { return scene.closed.has_value(); });
  scene.check_answers();
}

TEST_CASE("connection: a command after replies that wait is answered after them") {
  Scene scene;
  turn_until(scene.loop, [&] { return !scene.answers.empty(); });
  REQUIRE(scene.answers.size() < kCommands);
  bool is_answered = false;
  scene.connection.expect([&](const Reply& reply) {
    REQUIRE(reply != nullptr);
    CHECK(reply->integer == -1);
    CHECK(scene.answers.size() == kCommands);
    is_answered = true;
  });
  REQUIRE(scene.peer.send(":-1\r\n") == 5);
  turn_until(scene.loop, [&] { return is_answered; });
  scene.check_answers();
}

}  // namespace
}  // namespace allowd::store
