// SPDX-License-Identifier: MIT
#include "agent/io/admin_session.h"

#include <string>

#include "tests/io/server_scene.h"
#include "tests/support/prometheus.h"

namespace allowd::io {
namespace {

using testing::FakeStore;
using testing::ServerScene;
using testing::turn_on;
using testing::turn_until;

TEST_CASE("admin session: a line is answered by text that an empty line ends, again and again") {
  ServerScene scene;
  scene.open();
  auto admin = scene.admin();
  admin.send("ping\n");
  CHECK(admin.answer() == "pong\n");
  admin.send("info\n");
  CHECK(admin.answer().starts_with("version: 0.1.0\n"));
  admin.send("nonsense\n");
  CHECK(admin.answer() == "error: unknown_command: \"nonsense\"; try help\n");
  admin.send("ping\r\n");
  CHECK(admin.answer() == "pong\n");
  CHECK(admin.rest().empty());
}

TEST_CASE("admin session: several lines at once, or one in pieces, are answered in order") {
  ServerScene scene;
  scene.open();
  auto admin = scene.admin();
  admin.send("ping\nkey nosuch k\nping\npi");
  CHECK(admin.answer() == "pong\n");
  CHECK(admin.answer() == "error: unknown_limit: no limit is named \"nosuch\"\n");
  CHECK(admin.answer() == "pong\n");
  for (const char* piece : {"n", "g", "\n"}) {
    turn_on(scene.loop, 2);
    CHECK(admin.rest().empty());
    admin.send(piece);
  }
  CHECK(admin.answer() == "pong\n");
}

TEST_CASE("admin session: an empty line is a command that is missing") {
  ServerScene scene;
  scene.open();
  auto admin = scene.admin();
  admin.send("\n");
  CHECK(admin.answer() == "error: bad_request: no command; try help\n");
}

TEST_CASE("admin session: a question to the store is answered when the store does") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto admin = scene.admin();
  admin.send("key open user-1\n");
  scene.wait_for_questions(1);
  CHECK(admin.rest().empty());
  scene.fake.grant(scene.fake.asked[0], scene.loop.now());
  CHECK(admin.answer().find("source: store\n") != std::string::npos);
}

TEST_CASE("admin session: answers come in the order of the commands, also when one has to wait") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto admin = scene.admin();
  admin.send("key open user-1\nping\nkey open user-2\nlimits\n");
  scene.wait_for_questions(1);
  turn_on(scene.loop);
  CHECK(admin.rest().empty());
  scene.fake.grant(scene.fake.asked[0], scene.loop.now());
  CHECK(admin.answer().starts_with("limit: \"open\"\nkey: \"user-1\"\n"));
  CHECK(admin.answer() == "pong\n");
  scene.wait_for_questions(2);
  scene.fake.grant(scene.fake.asked[1], scene.loop.now());
  CHECK(admin.answer().starts_with("limit: \"open\"\nkey: \"user-2\"\n"));
  CHECK(admin.answer().starts_with("# name tier"));
}

TEST_CASE("admin session: a client that goes away while its question waits harms nobody") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  for (const std::size_t questions : {1U, 2U}) {
    auto admin = scene.admin();
    admin.send("key open user-1\nping\n");
    scene.wait_for_questions(questions);
  }
  turn_on(scene.loop);
  scene.fake.grant(scene.fake.asked[0], scene.loop.now());
  turn_until(scene.loop, [&] { return scene.metric("queries_expired_total") == 1; });
  auto admin = scene.admin();
  admin.send("ping\n");
  CHECK(admin.answer() == "pong\n");
}

TEST_CASE("admin session: a client that stopped sending still gets its answer, then the connection closes") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto admin = scene.admin();
  admin.send("ping\nkey open user-1\n");
  admin.end_sending();
  CHECK(admin.answer() == "pong\n");
  scene.wait_for_questions(1);
  scene.fake.grant(scene.fake.asked[0], scene.loop.now());
  CHECK(admin.answer().starts_with("limit: \"open\"\n"));
  admin.wait_for_close();
}

TEST_CASE("admin session: a line without an end is given up at 8192 bytes") {
  ServerScene scene;
  scene.open();
  auto admin = scene.admin();
  admin.send(std::string(AdminSession::kMaxLineBytes, 'x'));
  turn_on(scene.loop);
  CHECK(admin.rest().empty());
  admin.send("x");
  CHECK(admin.answer() == "error: too_large: a command may have 8192 bytes\n");
  admin.wait_for_close();
}

TEST_CASE("admin session: a line that is too long is refused also when its end comes with it") {
  ServerScene scene;
  scene.open();
  auto admin = scene.admin();
  admin.send(std::string(20'000, 'x') + "\n");
  CHECK(admin.answer() == "error: too_large: a command may have 8192 bytes\n");
}

TEST_CASE("admin session: all metrics together are well-formed for Prometheus") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  CHECK(client.ask(testing::allow_bytes(1, "open")).error.empty());
  auto admin = scene.admin();
  admin.send("stats prom\n");
  const testing::PrometheusText text(admin.answer());
  CHECK(text.problem().empty());
  CHECK(text.samples().at("allowd_connections") == 1);
  CHECK(text.samples().at("allowd_requests_total") == 1);
  CHECK(text.samples().at(R"(allowd_decisions_total{limit="open",tier="",verdict="ok",source="store"})") ==
        1);
  CHECK(text.samples().at(R"(allowd_decision_seconds_count{source="store"})") == 1);
}

}  // namespace
}  // namespace allowd::io
