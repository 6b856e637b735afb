// SPDX-License-Identifier: MIT
//
// What every session does, whatever it speaks: on one that speaks in single letters.
#include "agent/io/session.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "agent/io/unix_listener.h"
#include "tests/support/bytes.h"
#include "tests/support/printing.h"
#include "tests/support/raw_socket.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::io {
namespace {

using testing::RawSocket;
using testing::turn_on;
using testing::turn_until;

class FakeHost final : public SessionHost {
 public:
  int flushes = 0, resumes = 0, retirements = 0;
  void flush_at_turn_end(Session&) override { ++flushes; }
  void resume_after_turn(Session&) override { ++resumes; }
  void retire(Session&) override { ++retirements; }
  bool is_draining() const override { return false; }

  // What a server does at the end of each turn: only what it was asked for.
  void end_turn(Session& session) {
    if (flushes > std::exchange(flushes_done_, flushes)) session.flush();
    if (resumes > std::exchange(resumes_done_, resumes)) session.resume();
  }

 private:
  int flushes_done_ = 0, resumes_done_ = 0;
};

// 'a' is answered by 'A' and so on, 'm' by a mebibyte of it, 'q' by nothing; '.' ends the session after a
// last reply, '!' at once.
class LetterSession final : public Session {
 public:
  using Session::Session;
  std::size_t open = 0;
  std::size_t served = 0;

  [[nodiscard]] std::size_t open_queries() const override { return open; }
  void reply(std::string_view text) {
    out().append(text);
    has_replied();
  }

 private:
  std::size_t serve(std::span<const std::byte> bytes) override {
    std::size_t used = 0;
    while (used < bytes.size() && !must_pause()) {
      const char letter = testing::as_text(bytes)[used++];
      ++served;
      if (letter == '.') {
        finish();
      } else if (letter == '!') {
        end(End::violation);
      } else if (letter != 'q') {
        out().append(std::string(letter == 'm' ? 1024 * 1024 : 1, static_cast<char>(letter - 'a' + 'A')));
      }
    }
    return used;
  }
};

struct Scene {
  Scene() {
    auto opened = UnixListener::open(loop, {.path = directory / "s", .group = {}}, [this] {
      session = std::make_unique<LetterSession>(loop, host);
      REQUIRE(session->accept_from(listener->raw()));
    });
    REQUIRE(opened);
    listener = std::move(*opened);
    client = RawSocket::connect_to(directory / "s");
    turn_until(loop, [this] { return session != nullptr; });
  }
  void send(std::string_view letters) { REQUIRE(client.send(letters) == static_cast<long>(letters.size())); }
  // Turns until the session has served so many letters.
  void wait_for(std::size_t served) {
    turn_until(loop, [&] { return session->served >= served; });
  }
  std::string received() {
    static_cast<void>(client.receive(text));
    return text;
  }

  testing::TemporaryDirectory directory;
  loop::Loop loop;
  FakeHost host;
  std::unique_ptr<UnixListener> listener;
  std::unique_ptr<LetterSession> session;
  RawSocket client;
  std::string text;
};

TEST_CASE("session: replies gather until they are flushed, and the host is asked once") {
  Scene scene;
  scene.send("ab");
  scene.wait_for(2);
  scene.session->reply("!");
  CHECK(scene.host.flushes == 1);
  CHECK(scene.session->has_unsent());
  CHECK(scene.received().empty());
  scene.session->flush();
  CHECK(scene.received() == "AB!");
  CHECK_FALSE(scene.session->has_unsent());
  scene.send("c");
  scene.wait_for(3);
  CHECK(scene.host.flushes == 2);
}

TEST_CASE("session: past 64 KiB of unsent replies no more is served, until they have left") {
  Scene scene;
  scene.send("mab");
  scene.wait_for(1);
  CHECK(scene.session->served == 1);
  CHECK(scene.host.resumes == 1);
  scene.session->resume();  // nothing has left yet
  CHECK(scene.session->served == 1);
  scene.session->flush();
  scene.session->resume();  // the socket has not taken all of it
  CHECK(scene.session->served == 1);
  const int resumes = scene.host.resumes;
  turn_until(scene.loop,
             [&] { return scene.received().size() == 1024 * 1024 && scene.host.resumes > resumes; });
  scene.session->resume();
  CHECK(scene.session->served == 3);
  scene.session->flush();
  CHECK(scene.received().ends_with("MAB"));
  scene.send("c");
  scene.wait_for(4);  // it reads again
}

TEST_CASE("session: one whose replies leave at once, but later than it paused, goes on") {
  Scene scene;
  constexpr std::size_t kPause = Session::kPauseBytes, kAll = kPause + 10;
  scene.send(std::string(kAll, 'a'));
  scene.wait_for(kPause);
  scene.session->resume();  // at the end of a turn that had no time to send anything
  const int resumes = scene.host.resumes;
  scene.session->flush();
  CHECK_FALSE(scene.session->has_unsent());
  REQUIRE(scene.host.resumes > resumes);
  scene.session->resume();
  scene.wait_for(kAll);
}

TEST_CASE("session: past 4 MiB of unsent replies the connection is closed") {
  Scene scene;
  scene.session->reply(std::string(Session::kMaxOutBytes, 'x'));
  scene.session->flush();
  CHECK_FALSE(scene.session->has_ended());  // the socket has taken some
  scene.session->reply(std::string(Session::kMaxOutBytes, 'x'));
  scene.session->flush();
  CHECK(scene.session->has_ended());
  CHECK(scene.session->end_reason() == Session::End::overflowed);
  CHECK(scene.host.retirements == 1);
  CHECK_FALSE(scene.session->has_unsent());
}

TEST_CASE("session: a client counts as stuck when it has taken nothing between two looks") {
  Scene scene;
  CHECK_FALSE(scene.session->is_stuck());
  CHECK_FALSE(scene.session->is_stuck());
  scene.session->reply(std::string(2'000'000, 'x'));
  scene.session->flush();
  CHECK_FALSE(scene.session->is_stuck());  // the first look
  CHECK(scene.session->is_stuck());
  const std::size_t before = scene.received().size();
  turn_until(scene.loop, [&] { return scene.received().size() > before; });
  CHECK_FALSE(scene.session->is_stuck());  // it has taken some
  turn_until(scene.loop, [&] { return scene.received().size() == 2'000'000; });
  turn_on(scene.loop);
  CHECK_FALSE(scene.session->is_stuck());
  CHECK_FALSE(scene.session->is_stuck());
  scene.session->end(Session::End::by_us);
  CHECK_FALSE(scene.session->is_stuck());
}

TEST_CASE("session: after its last reply it ends when nothing is open and all has left") {
  Scene scene;
  scene.session->open = 1;
  scene.send("a.b");
  scene.wait_for(2);
  scene.session->flush();
  CHECK(scene.received() == "A");
  CHECK_FALSE(scene.session->has_ended());
  CHECK(scene.session->served == 2);  // what stands behind is not looked at
  scene.session->open = 0;
  scene.session->reply("last");
  scene.session->flush();
  CHECK(scene.session->has_ended());
  CHECK(scene.session->end_reason() == Session::End::by_us);
  CHECK(scene.received() == "Alast");
  CHECK(scene.host.retirements == 1);
}

TEST_CASE("session: a large last reply leaves before the connection closes") {
  Scene scene;
  scene.send("m.");
  scene.wait_for(1);
  turn_until(scene.loop, [&] {
    scene.host.end_turn(*scene.session);
    static_cast<void>(scene.received());
    return scene.session->has_ended();
  });
  CHECK(scene.received().size() == 1024 * 1024);
}

TEST_CASE("session: one that is to end while much is queued ends when that has left") {
  Scene scene;
  scene.session->reply(std::string(1024 * 1024, 'x'));
  scene.session->flush();
  scene.session->finish();
  turn_on(scene.loop);
  scene.host.end_turn(*scene.session);
  CHECK_FALSE(scene.session->has_ended());
  turn_until(scene.loop, [&] {
    scene.host.end_turn(*scene.session);
    static_cast<void>(scene.received());
    return scene.session->has_ended();
  });
  CHECK(scene.received().size() == 1024 * 1024);
  CHECK(scene.session->end_reason() == Session::End::by_us);
}

TEST_CASE("session: ends once, for the first reason, and is then deaf and dumb") {
  Scene scene;
  scene.send("a!b");
  turn_until(scene.loop, [&] { return scene.session->has_ended(); });
  CHECK(scene.session->end_reason() == Session::End::violation);
  scene.session->end(Session::End::by_us);
  scene.session->finish();
  scene.session->reply("nobody hears this");
  scene.session->flush();
  scene.session->resume();
  CHECK(scene.session->end_reason() == Session::End::violation);
  CHECK(scene.host.retirements == 1);
  CHECK(scene.session->served == 2);
  turn_on(scene.loop);
  CHECK(scene.received().empty());
}

TEST_CASE(
    "session: a client that breaks the connection ends it, one that stops sending gets its replies first") {
  SUBCASE("gone") {
    Scene scene;
    scene.session->open = 1;
    scene.client.close();
    turn_on(scene.loop);
    scene.session->reply("anybody?");
    scene.session->flush();
    CHECK(scene.session->has_ended());
    CHECK(scene.session->end_reason() == Session::End::by_peer);
    CHECK(scene.host.retirements == 1);
  }
  SUBCASE("silent") {
    Scene scene;
    scene.send("ab");
    scene.client.end_sending();
    turn_until(scene.loop, [&] { return scene.host.flushes > 0; });
    turn_on(scene.loop);
    CHECK_FALSE(scene.session->has_ended());
    scene.session->flush();
    CHECK(scene.session->has_ended());
    CHECK(scene.received() == "AB");
  }
}

}  // namespace
}  // namespace allowd::io
