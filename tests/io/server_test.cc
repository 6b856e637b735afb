// SPDX-License-Identifier: MIT
#include "agent/io/server.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/io/server_scene.h"

namespace allowd::io {
namespace {

using namespace std::chrono_literals;
using testing::allow_bytes;
using testing::Client;
using testing::FakeStore;
using testing::plain_bytes;
using testing::RawSocket;
using testing::ServerScene;
using testing::turn_on;
using testing::turn_until;

TEST_CASE("server: one that was never opened can go") {
  const ServerScene scene;
  CHECK_FALSE(std::filesystem::exists(scene.app_path));
}

TEST_CASE("server: one that is open with clients connected can go") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  client.send(allow_bytes(1, "open", 50'000'000));
  scene.wait_for_questions(1);
  scene.server.reset();
  CHECK_FALSE(std::filesystem::exists(scene.app_path));
  CHECK_FALSE(std::filesystem::exists(scene.admin_path));
}

TEST_CASE("server: an answer to an admin's question that comes after the server has gone is dropped") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto admin = scene.admin();
  admin.send("key open k\n");
  scene.wait_for_questions(1);
  scene.server.reset();
  scene.decider.expire_all(scene.loop.now());
  CHECK(scene.decider.open_queries() == 0);
  CHECK(admin.rest().empty());
}

TEST_CASE("server: opens both sockets or neither") {
  ServerScene scene;
  std::ofstream(scene.admin_path) << "in the way";
  const auto problem = scene.server->open();
  REQUIRE(problem.has_value());
  CHECK(problem->message.starts_with(scene.admin_path));
  CHECK_FALSE(std::filesystem::exists(scene.app_path));
  std::filesystem::remove(scene.admin_path);
  scene.open();
  CHECK(scene.client().ask(plain_bytes(1, "ping")).msgid == 1);
}

TEST_CASE("server: many clients are served side by side and counted") {
  ServerScene scene;
  scene.open();
  std::vector<Client> clients;
  for (int i = 0; i < 50; ++i) clients.push_back(scene.client());
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (Client& client : clients) client.send(plain_bytes(round, "ping"));
    for (Client& client : clients) CHECK(client.reply().msgid == round);
  }
  CHECK(scene.metric("connections") == 50);
  CHECK(scene.metric("connections_accepted_total") == 50);
  clients.clear();
  turn_until(scene.loop, [&] { return scene.metric("connections") == 0; });
  CHECK(scene.metric("requests_total") == 150);
}

TEST_CASE("server: clients beyond the most that may be connected wait until one leaves") {
  ServerScene scene(FakeStore::Mode::grant, 2);
  scene.open();
  auto first = scene.client(), second = scene.client();
  CHECK(first.ask(plain_bytes(1, "ping")).msgid == 1);
  CHECK(second.ask(plain_bytes(2, "ping")).msgid == 2);
  auto third = scene.client(), fourth = scene.client();
  third.send(plain_bytes(3, "ping"));
  fourth.send(plain_bytes(4, "ping"));
  turn_on(scene.loop, 10);
  CHECK(third.rest().empty());
  CHECK(scene.metric("connections") == 2);
  CHECK(first.ask(plain_bytes(5, "ping")).msgid == 5);

  first.close();
  CHECK(third.reply().msgid == 3);
  CHECK(fourth.rest().empty());
  third.close();
  CHECK(fourth.reply().msgid == 4);
  CHECK(scene.metric("connections_accepted_total") == 4);
}

TEST_CASE("server: a client that has to wait is counted once, whoever else comes and goes meanwhile") {
  ServerScene scene(FakeStore::Mode::grant, 1);
  scene.open();
  auto first = scene.client();
  CHECK(first.ask(plain_bytes(1, "ping")).msgid == 1);
  auto waiting = scene.client();
  waiting.send(plain_bytes(2, "ping"));
  turn_until(scene.loop, [&] { return scene.metric("connections_full_total") == 1; });
  for (int i = 0; i < 3; ++i) {
    auto admin = scene.admin();
    admin.send("ping\n");
    CHECK(admin.answer() == "pong\n");
  }
  turn_on(scene.loop);
  CHECK(scene.metric("connections_full_total") == 1);
  first.close();
  CHECK(waiting.reply().msgid == 2);
}

// So many that no other has a place; each has sent that.
std::vector<Client> fill_admin_socket(ServerScene& scene, const std::string& command) {
  std::vector<Client> admins;
  for (int i = 0; i < 32; ++i) {
    admins.push_back(scene.admin());
    admins.back().send(command);
  }
  return admins;
}

void turn_for(ServerScene& scene, limiter::Micros time) {
  turn_until(scene.loop, [&, end = scene.loop.now() + time] { return scene.loop.now() >= end; });
}

TEST_CASE("server: the admin socket has its own bound, and goes on when a client leaves") {
  ServerScene scene;
  scene.open();
  auto admins = fill_admin_socket(scene, "ping\n");
  for (Client& admin : admins) CHECK(admin.answer() == "pong\n");
  auto waiting = scene.admin();
  waiting.send("ping\n");
  turn_on(scene.loop, 10);
  CHECK(waiting.rest().empty());
  CHECK(scene.client().ask(plain_bytes(1, "ping")).msgid == 1);
  admins.pop_back();
  CHECK(waiting.answer() == "pong\n");
  for (Client& admin : admins) CHECK_FALSE(admin.is_closed());
}

TEST_CASE("server: an admin who finds no place gets that of the one who has been silent longest") {
  ServerScene scene;
  scene.open();
  auto admins = fill_admin_socket(scene, "ping\n");
  for (Client& admin : admins) CHECK(admin.answer() == "pong\n");
  turn_for(scene, 2ms);
  for (std::size_t i = 0; i < admins.size(); ++i) {
    if (i == 7) continue;
    admins[i].send("ping\n");
    CHECK(admins[i].answer() == "pong\n");
  }
  auto late = scene.admin();
  late.send("ping\n");
  CHECK(late.answer() == "pong\n");  // as soon as the silence has lasted
  for (std::size_t i = 0; i < admins.size(); ++i) {
    CAPTURE(i);
    CHECK(admins[i].is_closed() == (i == 7));
  }
}

TEST_CASE("server: an admin who waits for an answer keeps its place, however long that takes") {
  ServerScene scene;
  scene.fake.resets_wait = true;
  scene.open();
  auto admins = fill_admin_socket(scene, "reset open k\n");
  turn_until(scene.loop, [&] { return scene.fake.waiting_resets.size() == 2 * admins.size(); });
  auto waiting = scene.admin();
  waiting.send("ping\n");
  turn_for(scene, 1200ms);
  CHECK(waiting.rest().empty());
  for (Client& admin : admins) CHECK_FALSE(admin.is_closed());
  for (const auto& done : scene.fake.waiting_resets) done(true);
  for (Client& admin : admins) CHECK(admin.answer() == "reset\n");
  CHECK(waiting.answer() == "pong\n");
}

TEST_CASE("server: sockets have the modes that were asked for") {
  ServerScene scene;
  scene.open();
  struct stat status {};
  REQUIRE(::stat(scene.app_path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0660);
}

TEST_CASE("server: draining without clients is done at once") {
  ServerScene scene;
  scene.open();
  int done = 0;
  scene.server->drain([&] { ++done; });
  CHECK_FALSE(std::filesystem::exists(scene.app_path));
  CHECK_FALSE(std::filesystem::exists(scene.admin_path));
  turn_until(scene.loop, [&] { return done > 0; });
  turn_on(scene.loop);
  CHECK(done == 1);
}

TEST_CASE("server: draining answers what is in flight, refuses what is new, accepts nobody and closes") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  client.send(allow_bytes(1, "open", 50'000'000));
  scene.wait_for_questions(1);
  int done = 0;
  scene.server->drain([&] { ++done; });
  scene.server->drain([&] { done += 100; });  // twice is once
  CHECK_FALSE(RawSocket::connect_to(scene.app_path).is_open());

  for (const char* method : {"ping", "info", "stats"}) {
    const auto refused = client.ask(plain_bytes(2, method));
    CHECK(refused.error == "shutting_down: the agent is stopping");
  }
  CHECK(client.ask(allow_bytes(3, "open")).error.starts_with("shutting_down: "));
  CHECK(scene.fake.asked.size() == 1);
  turn_on(scene.loop, 20);
  CHECK(done == 0);

  scene.fake.grant(scene.fake.asked[0], scene.loop.now());
  CHECK(client.reply().msgid == 1);
  client.wait_for_close();
  turn_until(scene.loop, [&] { return done > 0; });
  CHECK(done == 1);
}

TEST_CASE("server: requests that had arrived when draining began are answered") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  CHECK(client.ask(plain_bytes(1, "ping")).msgid == 1);
  // Into the socket, without a turn of the loop in between.
  const std::string bytes = plain_bytes(2, "ping") + allow_bytes(3, "open");
  REQUIRE(client.send_some(bytes) == static_cast<long>(bytes.size()));
  bool is_done = false;
  scene.server->drain([&] { is_done = true; });
  const auto replies = client.replies(2);
  CHECK(replies[0].error.starts_with("shutting_down: "));
  CHECK(replies[1].msgid == 3);
  turn_until(scene.loop, [&] { return is_done; });
}

TEST_CASE("server: clients that wait to be accepted when draining begins are let go") {
  ServerScene scene(FakeStore::Mode::grant, 1);
  scene.open();
  auto first = scene.client();
  CHECK(first.ask(plain_bytes(1, "ping")).msgid == 1);
  auto waiting = scene.client();
  turn_until(scene.loop, [&] { return scene.metric("connections_full_total") == 1; });
  bool is_done = false;
  scene.server->drain([&] { is_done = true; });
  turn_until(scene.loop, [&] { return is_done; });
  waiting.wait_for_close();
  first.wait_for_close();
  CHECK(waiting.rest().empty());
}

}  // namespace
}  // namespace allowd::io
