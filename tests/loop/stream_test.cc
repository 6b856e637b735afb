// SPDX-License-Identifier: MIT
#include "agent/loop/stream.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/bytes.h"
#include "tests/support/printing.h"
#include "tests/support/random_message.h"
#include "tests/support/raw_socket.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::loop {
namespace {

using testing::RawSocket;
using testing::turn_on;
using testing::turn_until;

class Owner final : public StreamEvents {
 public:
  std::string received;
  std::vector<int> ends;
  int drained = 0;
  // How many of the bytes that are there to take; all of them unless a test says otherwise.
  std::function<std::size_t(std::string_view)> consume = [](std::string_view bytes) { return bytes.size(); };
  std::function<void()> before_bytes, on_ended, on_empty;

  std::size_t on_bytes(std::span<const std::byte> bytes) override {
    if (before_bytes) before_bytes();
    const std::string_view text = testing::as_text(bytes);
    const std::size_t used = consume(text);
    received.append(text.substr(0, used));
    return used;
  }
  void on_end(int status) override {
    ends.push_back(status);
    if (on_ended) on_ended();
  }
  void on_drained() override {
    ++drained;
    if (on_empty) on_empty();
  }
};

// A stream, connected to a raw peer.
struct Scene {
  Scene() {
    int status = 1;
    stream->connect_unix(path, [&](int result) { status = result; });
    turn_until(loop, [&] { return status != 1; });
    REQUIRE(status == 0);
    peer = listening.accept();
    REQUIRE(peer.is_open());
    stream->start_reading();
  }
  void write(std::string_view bytes) {
    protocol::ByteBuffer out;
    out.append(bytes);
    stream->write(out);
    CHECK(out.empty());
  }

  testing::TemporaryDirectory directory;
  std::string path = directory / "s";
  RawSocket listening = RawSocket::listen_at(path);
  Loop loop;
  Owner owner;
  std::unique_ptr<Stream> stream = std::make_unique<Stream>(loop, Stream::Family::unix_socket, owner);
  RawSocket peer;
};

TEST_CASE("stream: one that was never connected can go") {
  Loop loop;
  Owner owner;
  const Stream unix_stream(loop, Stream::Family::unix_socket, owner);
  const Stream tcp_stream(loop, Stream::Family::tcp, owner);
  CHECK(owner.ends.empty());
}

TEST_CASE("stream: connecting to nobody is told once") {
  const testing::TemporaryDirectory directory;
  Loop loop;
  Owner owner;
  Stream stream(loop, Stream::Family::unix_socket, owner);
  std::vector<int> results;
  stream.connect_unix(directory / "none", [&](int status) { results.push_back(status); });
  turn_until(loop, [&] { return !results.empty(); });
  turn_on(loop);
  CHECK(results == std::vector<int>{UV_ENOENT});
}

TEST_CASE("stream: one that goes while connecting calls nobody") {
  const testing::TemporaryDirectory directory;
  const auto listening = RawSocket::listen_at(directory / "s");
  Loop loop;
  Owner owner;
  int calls = 0;
  {
    Stream stream(loop, Stream::Family::unix_socket, owner);
    stream.connect_unix(directory / "s", [&](int) { ++calls; });
  }
  turn_on(loop);
  CHECK(calls == 0);
}

TEST_CASE("stream: may be destroyed from inside the answer to connecting") {
  const testing::TemporaryDirectory directory;
  const auto listening = RawSocket::listen_at(directory / "s");
  Loop loop;
  Owner owner;
  auto stream = std::make_unique<Stream>(loop, Stream::Family::unix_socket, owner);
  int calls = 0;
  stream->connect_unix(directory / "s", [&](int) {
    stream.reset();
    ++calls;
  });
  turn_until(loop, [&] { return calls > 0; });
  turn_on(loop);
  CHECK(calls == 1);
}

TEST_CASE("stream: what arrives is handed over") {
  Scene scene;
  REQUIRE(scene.peer.send("hello") == 5);
  turn_until(scene.loop, [&] { return scene.owner.received == "hello"; });
  REQUIRE(scene.peer.send(" again") == 6);
  turn_until(scene.loop, [&] { return scene.owner.received == "hello again"; });
  CHECK(scene.stream->unconsumed_bytes() == 0);
}

// Takes whole lines only.
std::size_t whole_lines(std::string_view bytes) { return bytes.rfind('\n') + 1; }

TEST_CASE("stream: what is not consumed comes again in front of what arrives next") {
  Scene scene;
  scene.owner.consume = whole_lines;
  const std::string message = "a line of text\nand another\n";
  for (const char& byte : message) {
    REQUIRE(scene.peer.send(std::string_view(&byte, 1)) == 1);
    const auto sent = static_cast<std::size_t>(&byte - message.data()) + 1;
    turn_until(scene.loop,
               [&] { return scene.owner.received.size() + scene.stream->unconsumed_bytes() == sent; });
  }
  CHECK(scene.owner.received == message);
}

TEST_CASE("stream: a megabyte in random pieces arrives whole and in order") {
  Scene scene;
  scene.owner.consume = whole_lines;
  testing::RandomMessages random(3);
  std::string all;
  while (all.size() < 1'000'000)
    all += std::string(random.below(9000), static_cast<char>('a' + random.below(26))) + "\n";
  std::size_t sent = 0;
  turn_until(scene.loop, [&] {
    const std::string_view rest = std::string_view(all).substr(sent);
    const long taken = scene.peer.send(rest.substr(0, random.below(100'000)));
    if (taken > 0) sent += static_cast<std::size_t>(taken);
    return scene.owner.received.size() == all.size();
  });
  CHECK(scene.owner.received == all);
}

TEST_CASE("stream: one that does not read hands nothing over until it reads again") {
  Scene scene;
  CHECK(scene.stream->is_reading());
  scene.stream->stop_reading();
  CHECK_FALSE(scene.stream->is_reading());
  REQUIRE(scene.peer.send("later") == 5);
  turn_on(scene.loop);
  CHECK(scene.owner.received.empty());
  scene.stream->start_reading();
  turn_until(scene.loop, [&] { return scene.owner.received == "later"; });
}

TEST_CASE("stream: rereading offers the unconsumed bytes again, and only if there are some") {
  Scene scene;
  bool may_take = false;
  int offers = 0;
  scene.owner.before_bytes = [&] { ++offers; };
  scene.owner.consume = [&](std::string_view bytes) { return may_take ? bytes.size() : std::size_t{0}; };
  scene.stream->reread();
  CHECK(offers == 0);
  REQUIRE(scene.peer.send("abc") == 3);
  turn_until(scene.loop, [&] { return offers == 1; });
  scene.stream->reread();
  CHECK(offers == 2);
  CHECK(scene.stream->unconsumed_bytes() == 3);
  may_take = true;
  scene.stream->reread();
  CHECK(scene.owner.received == "abc");
  CHECK(scene.stream->unconsumed_bytes() == 0);
  scene.stream->reread();
  CHECK(offers == 3);
}

TEST_CASE("stream: what is written arrives at once when there is room") {
  Scene scene;
  scene.write("hello");
  CHECK(scene.stream->queued_bytes() == 0);
  std::string received;
  CHECK(scene.peer.receive(received));
  CHECK(received == "hello");
  scene.write("");
  CHECK(scene.peer.receive(received));
  CHECK(received == "hello");
  CHECK(scene.owner.drained == 0);
}

TEST_CASE("stream: what the peer does not read is queued, leaves in order, and its end is told") {
  Scene scene;
  std::string expected;
  for (int i = 0; i < 40; ++i) {
    const std::string part(100'000, static_cast<char>('a' + i % 26));
    scene.write(part);
    expected += part;
  }
  CHECK(scene.stream->queued_bytes() > 1'000'000);
  CHECK(scene.stream->queued_bytes() < expected.size());
  turn_on(scene.loop);
  CHECK(scene.owner.drained == 0);
  std::string received;
  turn_until(scene.loop, [&] {
    CHECK(scene.peer.receive(received));
    return received.size() == expected.size();
  });
  CHECK(received == expected);
  turn_until(scene.loop, [&] { return scene.owner.drained == 1; });
  CHECK(scene.stream->queued_bytes() == 0);
}

TEST_CASE("stream: may be destroyed while much is queued, and then calls nobody") {
  Scene scene;
  scene.write(std::string(5'000'000, 'x'));
  CHECK(scene.stream->queued_bytes() > 0);
  scene.stream.reset();
  turn_on(scene.loop);
  CHECK(scene.owner.ends.empty());
  CHECK(scene.owner.drained == 0);
  std::string received;
  CHECK_FALSE(scene.peer.receive(received));  // the socket is closed
}

TEST_CASE("stream: a peer that has closed is told once") {
  Scene scene;
  REQUIRE(scene.peer.send("last words") == 10);
  scene.peer.close();
  turn_until(scene.loop, [&] { return !scene.owner.ends.empty(); });
  turn_on(scene.loop);
  CHECK(scene.owner.received == "last words");
  CHECK(scene.owner.ends == std::vector<int>{UV_EOF});
}

TEST_CASE("stream: a peer that only stopped sending can still be written to") {
  Scene scene;
  scene.peer.end_sending();
  turn_until(scene.loop, [&] { return !scene.owner.ends.empty(); });
  CHECK(scene.owner.ends == std::vector<int>{UV_EOF});
  scene.write("the answer");
  std::string received;
  CHECK(scene.peer.receive(received));
  CHECK(received == "the answer");
}

TEST_CASE("stream: writing to a peer that has gone ends the stream once, without a signal") {
  Scene scene;
  scene.stream->stop_reading();
  scene.peer.close();
  scene.write("anybody?");
  CHECK(scene.owner.ends == std::vector<int>{UV_EPIPE});
  scene.write("anybody?");
  scene.stream->start_reading();
  turn_on(scene.loop);
  CHECK(scene.owner.ends.size() == 1);
}

TEST_CASE("stream: a peer that goes while much is queued ends the stream") {
  Scene scene;
  scene.stream->stop_reading();
  for (int i = 0; i < 3; ++i) scene.write(std::string(2'000'000, 'x'));
  scene.peer.close();
  turn_until(scene.loop, [&] { return !scene.owner.ends.empty(); });
  turn_on(scene.loop);
  CHECK(scene.owner.ends.size() == 1);
  CHECK(scene.owner.ends[0] < 0);
  CHECK(scene.owner.drained == 0);
}

TEST_CASE("stream: may be destroyed from inside any of its callbacks") {
  SUBCASE("when bytes come") {
    Scene scene;
    scene.owner.before_bytes = [&] { scene.stream.reset(); };
    scene.owner.consume = [](std::string_view) { return std::size_t{0}; };
    REQUIRE(scene.peer.send("abc") == 3);
    turn_until(scene.loop, [&] { return !scene.stream; });
    turn_on(scene.loop);
    CHECK(scene.owner.ends.empty());
  }
  SUBCASE("when bytes come again") {
    Scene scene;
    scene.owner.consume = [](std::string_view) { return std::size_t{0}; };
    REQUIRE(scene.peer.send("abc") == 3);
    turn_until(scene.loop, [&] { return scene.stream->unconsumed_bytes() == 3; });
    scene.owner.before_bytes = [&] { scene.stream.reset(); };
    scene.stream->reread();
    CHECK_FALSE(scene.stream);
    turn_on(scene.loop);
  }
  SUBCASE("when the peer has gone") {
    Scene scene;
    scene.owner.on_ended = [&] { scene.stream.reset(); };
    scene.peer.close();
    turn_until(scene.loop, [&] { return !scene.stream; });
    turn_on(scene.loop);
    CHECK(scene.owner.ends.size() == 1);
  }
  SUBCASE("when a write fails") {
    Scene scene;
    scene.stream->stop_reading();
    scene.owner.on_ended = [&] { scene.stream.reset(); };
    scene.peer.close();
    scene.write("anybody?");
    CHECK_FALSE(scene.stream);
    turn_on(scene.loop);
  }
  SUBCASE("when everything has left") {
    Scene scene;
    scene.owner.on_empty = [&] { scene.stream.reset(); };
    scene.write(std::string(1'000'000, 'x'));
    std::string received;
    turn_until(scene.loop, [&] {
      static_cast<void>(scene.peer.receive(received));
      return !scene.stream;
    });
    CHECK(received.size() == 1'000'000);
    turn_on(scene.loop);
  }
}

TEST_CASE("stream: speaks TCP too") {
  std::uint16_t port = 0;
  auto listening = RawSocket::listen_on_loopback(port);
  sockaddr_in address{};
  REQUIRE(uv_ip4_addr("127.0.0.1", port, &address) == 0);
  Loop loop;
  Owner owner;
  Stream stream(loop, Stream::Family::tcp, owner);
  int status = 1;
  stream.connect_tcp(reinterpret_cast<const sockaddr*>(&address), [&](int result) { status = result; });
  turn_until(loop, [&] { return status != 1; });
  REQUIRE(status == 0);
  stream.start_reading();
  auto peer = listening.accept();
  REQUIRE(peer.is_open());
  protocol::ByteBuffer out;
  out.append("ping");
  stream.write(out);
  std::string received;
  turn_until(loop, [&] {
    CHECK(peer.receive(received));
    return received == "ping";
  });
  REQUIRE(peer.send("pong") == 4);
  turn_until(loop, [&] { return owner.received == "pong"; });
}

TEST_CASE("stream: a TCP port that nobody listens on is told once") {
  std::uint16_t port = 0;
  auto listening = RawSocket::listen_on_loopback(port);
  listening.close();
  sockaddr_in address{};
  REQUIRE(uv_ip4_addr("127.0.0.1", port, &address) == 0);
  Loop loop;
  Owner owner;
  Stream stream(loop, Stream::Family::tcp, owner);
  std::vector<int> results;
  stream.connect_tcp(reinterpret_cast<const sockaddr*>(&address),
                     [&](int result) { results.push_back(result); });
  turn_until(loop, [&] { return !results.empty(); });
  turn_on(loop);
  CHECK(results == std::vector<int>{UV_ECONNREFUSED});
}

TEST_CASE(
    "stream: in a turn that has read for long enough nobody else is read from, and everybody has a turn") {
  constexpr std::size_t kStreams = 5;
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path() + "/s";
  const RawSocket listening = RawSocket::listen_at(path);
  Loop loop;
  std::vector<std::size_t> served;  // whom each turn read from, in order
  std::vector<std::unique_ptr<Owner>> owners;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<RawSocket> peers;
  for (std::size_t i = 0; i < kStreams; ++i) {
    owners.push_back(std::make_unique<Owner>());
    owners.back()->before_bytes = [&, i] {
      served.push_back(i);
      // As long as a turn's reading may take at all.
      const SteadyTime begun = Loop::exact_now();
      while (Loop::exact_now() - begun <= Loop::kReadingPerTurn) {
      }
    };
    streams.push_back(std::make_unique<Stream>(loop, Stream::Family::unix_socket, *owners.back()));
    bool is_connected = false;
    streams.back()->connect_unix(path, [&](int status) { is_connected = status == 0; });
    turn_until(loop, [&] { return is_connected; });
    peers.push_back(listening.accept());
    streams.back()->start_reading();
  }
  constexpr std::size_t kRounds = 3;
  for (std::size_t turn = 0; turn < kRounds * kStreams; ++turn) {
    // All of them always have more to say.
    for (const RawSocket& peer : peers) REQUIRE(peer.send("more") > 0);
    const std::size_t before = served.size();
    uv_run(loop.raw(), UV_RUN_NOWAIT);
    REQUIRE(served.size() == before + 1);
  }
  for (std::size_t i = 0; i < kStreams; ++i) {
    CHECK(std::count(served.begin(), served.end(), i) == kRounds);
  }
}

}  // namespace
}  // namespace allowd::loop
