// SPDX-License-Identifier: MIT
#include "agent/io/app_session.h"

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/io/server_scene.h"

namespace allowd::io {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::allow_bytes;
using testing::FakeStore;
using testing::plain_bytes;
using testing::SeenReply;
using testing::ServerScene;
using testing::turn_on;
using testing::turn_until;
namespace encode = testing::encode;
using Fate = store::AnswerSink::Fate;

json value_of(const SeenReply& reply) {
  protocol::Cursor cursor(testing::as_bytes(reply.result));
  protocol::Value value;
  REQUIRE(protocol::read_value(cursor, value));
  return json::parse(value.to_json());
}

TEST_CASE("app session: every method is answered under its msgid") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();

  const SeenReply pong = client.ask(plain_bytes(7, "ping"));
  CHECK(pong.msgid == 7);
  CHECK(value_of(pong) == "pong");

  const SeenReply allowed = client.ask(allow_bytes(0xffffffff, "open"));
  CHECK(allowed.msgid == 0xffffffff);
  CHECK(allowed.error.empty());
  CHECK(allowed.decision().allowed);
  CHECK(allowed.decision().remaining == 9);
  CHECK(allowed.decision().source == "store");
  CHECK(scene.fake.asked.at(0).operation == limiter::Operation::take);

  const SeenReply peeked = client.ask(
      encode::request(encode::integer(8), "peek",
                      encode::array(3) + encode::str("open") + encode::str("k") + encode::integer(2)));
  CHECK(peeked.decision().allowed);
  CHECK(scene.fake.asked.at(1).operation == limiter::Operation::peek);
  CHECK(scene.fake.asked.at(1).cost == 2);

  const json info = value_of(client.ask(plain_bytes(9, "info")));
  CHECK(info.at("version") == "0.1.0");
  CHECK(info.at("limits").size() == 2);
  const json stats = value_of(client.ask(plain_bytes(10, "stats")));
  CHECK(stats.at("requests_total") == 5);
  CHECK(stats.at("connections") == 1);
}

TEST_CASE("app session: mistakes are answered by their code, and the connection stays") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {encode::request(encode::integer(7), "reserve", encode::array(0)),
       "unknown_method: no such method on this socket"},
      {allow_bytes(7, "nosuch"), "unknown_limit: no limit is named \"nosuch\""},
      {encode::allow(3, encode::str("open") + encode::str("k") + encode::negative(-1)),
       "bad_request: cost is negative"},
      {encode::allow(2, encode::str("open") + encode::str(std::string(1025, 'k'))),
       "too_large: key is over 1024 bytes"},
      {encode::allow(2, encode::map(2) + encode::str("name") + encode::str("n") + encode::str("rate") +
                            encode::str("fast") + encode::str("k")),
       "bad_request: limit.rate: a rate is a count per time, like \"100/s\", \"5/10s\" or \"1000/day\""},
  };
  for (const auto& [bytes, error] : mistakes) {
    const SeenReply reply = client.ask(bytes);
    CHECK(reply.msgid == 7);
    CHECK(reply.error == error);
  }
  CHECK(client.ask(plain_bytes(8, "ping")).error.empty());
  CHECK(scene.metric("requests_total") == 6);
  CHECK(scene.metric("requests_refused_total") == 5);
}

TEST_CASE("app session: many requests in one write are all answered, in order when nothing waits") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  std::string bytes;
  for (std::uint32_t i = 0; i < 1000; ++i)
    bytes += i % 3 == 0 ? plain_bytes(i, "ping") : allow_bytes(i, "open");
  client.send(bytes);
  const auto replies = client.replies(1000);
  for (std::uint32_t i = 0; i < 1000; ++i) REQUIRE(replies[i].msgid == i);
}

TEST_CASE("app session: requests that are split at any byte are served when they are whole") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  const std::string bytes =
      allow_bytes(1, "open", 45'000) + plain_bytes(2, "ping") + allow_bytes(3, "nosuch");
  for (const char& byte : bytes) {
    client.send(std::string_view(&byte, 1));
    turn_on(scene.loop, 2);
  }
  const auto replies = client.replies(3);
  CHECK(replies[0].msgid == 1);
  CHECK(replies[1].msgid == 2);
  CHECK(replies[2].error.starts_with("unknown_limit"));
}

TEST_CASE("app session: a store that answers later is waited for, and others are served meanwhile") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  client.send(allow_bytes(1, "open", 50'000'000) + allow_bytes(2, "open", 50'000'000) +
              plain_bytes(3, "ping"));
  CHECK(client.reply().msgid == 3);
  scene.wait_for_questions(2);
  CHECK(scene.metric("queries_open") == 2);
  CHECK(scene.fake.grant(scene.fake.asked[1], scene.loop.now()) == Fate::delivered);
  CHECK(client.reply().msgid == 2);
  CHECK(scene.fake.grant(scene.fake.asked[0], scene.loop.now()) == Fate::delivered);
  const SeenReply last = client.reply();
  CHECK(last.msgid == 1);
  CHECK(last.decision().source == "store");
}

std::string many_bytes(std::uint32_t msgid, int items, std::string_view mode) {
  std::string list = encode::array(static_cast<unsigned>(items));
  for (int i = 0; i < items; ++i)
    list += encode::array(2) + encode::str("open") + encode::str("key " + std::to_string(i));
  return encode::request(encode::integer(msgid), "allow_many",
                         encode::array(3) + list + encode::str(mode) + encode::map(1) +
                             encode::str("deadline_us") + encode::u32(50'000'000));
}

// How many decisions stand in the result of an allow_many.
std::size_t decisions_in(const SeenReply& reply) {
  protocol::Cursor cursor(testing::as_bytes(reply.result));
  std::uint32_t count = 0;
  REQUIRE(cursor.read_array(count));
  for (std::uint32_t i = 0; i < count; ++i) {
    protocol::ReceivedDecision decision;
    REQUIRE(protocol::read_decision(cursor, decision));
  }
  return count;
}

TEST_CASE("app session: allow_many is one reply, when the last of its answers has come") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  client.send(many_bytes(1, 3, "each") + plain_bytes(2, "ping"));
  CHECK(client.reply().msgid == 2);
  scene.wait_for_questions(3);
  for (const std::size_t i : {2U, 0U}) scene.fake.grant(scene.fake.asked[i], scene.loop.now());
  turn_on(scene.loop);
  CHECK(client.replies_so_far() == 0);
  scene.fake.grant(scene.fake.asked[1], scene.loop.now());
  const SeenReply reply = client.reply();
  CHECK(reply.msgid == 1);
  CHECK(decisions_in(reply) == 3);
}

TEST_CASE("app session: allow_many of all goes on by itself from answer to answer") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  client.send(many_bytes(1, 3, "all"));
  for (std::size_t i = 0; i < 3; ++i) {
    scene.wait_for_questions(i + 1);
    scene.fake.grant(scene.fake.asked[i], scene.loop.now());
  }
  CHECK(decisions_in(client.reply()) == 3);
}

TEST_CASE("app session: a client that leaves an allow_many behind is let go when the last answer has come") {
  for (const char* mode : {"each", "all"}) {
    ServerScene scene(FakeStore::Mode::later);
    scene.fake.can_ask_together = true;
    scene.open();
    {
      auto client = scene.client();
      client.send(many_bytes(1, 3, mode));
      scene.wait_for_questions(3);
    }
    turn_on(scene.loop);
    for (const auto& asked : std::vector(scene.fake.asked)) scene.fake.grant(asked, scene.loop.now());
    testing::turn_until(scene.loop, [&] { return scene.metric("connections") == 0; });
    CHECK(scene.metric("queries_open") == 0);
  }
}

TEST_CASE("app session: a deadline that passes is answered by the policy, without anything else happening") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  client.send(allow_bytes(1, "open", 1500) + allow_bytes(2, "closed", 2500));
  const auto replies = client.replies(2);
  std::map<std::uint64_t, SeenReply> by_msgid;
  for (const SeenReply& reply : replies) by_msgid[reply.msgid] = reply;
  CHECK(by_msgid.at(1).decision().allowed);
  CHECK(by_msgid.at(1).decision().source == "fallback");
  CHECK(by_msgid.at(1).decision().verdict == "ok");
  CHECK_FALSE(by_msgid.at(2).decision().allowed);
  CHECK(by_msgid.at(2).decision().verdict == "unavailable");
  CHECK(by_msgid.at(2).decision().retry_after_us == 250'000);
  CHECK(scene.fake.grant(scene.fake.asked.at(1), scene.loop.now()) == Fate::refused_meanwhile);
  CHECK(client.ask(plain_bytes(3, "ping")).msgid == 3);  // no second answer came in between
}

TEST_CASE("app session: a deadline that passes wakes a loop that waits for nothing else") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  const std::string bytes = allow_bytes(1, "open", 3000);
  REQUIRE(client.send_some(bytes) == static_cast<long>(bytes.size()));
  testing::run_until(scene.loop, [&] { return !client.rest().empty(); });
  CHECK(client.reply().decision().source == "fallback");
}

TEST_CASE(
    "app session: requests that had to wait for replies to leave are served without anything else "
    "happening") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  // Short requests with long replies, all in one read.
  constexpr std::uint32_t kRequests = 400;
  std::string bytes;
  for (std::uint32_t i = 0; i < kRequests; ++i) bytes += plain_bytes(i, "stats");
  REQUIRE(client.send_some(bytes) == static_cast<long>(bytes.size()));
  std::size_t seen = 0;
  testing::run_until(scene.loop, [&] {
    seen += client.replies_so_far();
    return seen == kRequests;
  });
}

TEST_CASE("app session: what breaks the protocol closes its own connection and no other") {
  ServerScene scene;
  scene.open();
  auto other = scene.client();
  CHECK(other.ask(plain_bytes(1, "ping")).msgid == 1);
  int violations = 0;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\xc1"),
        encode::array(4) + encode::integer(1) + encode::integer(7) + encode::nil() + encode::nil(),
        encode::array(4) + encode::integer(0) + encode::str("7")}) {
    auto client = scene.client();
    client.send(bytes);
    client.wait_for_close();
    CHECK(client.rest().empty());
    turn_until(scene.loop, [&] { return scene.metric("connections_violating_total") == violations + 1; });
    ++violations;
    CHECK(other.ask(plain_bytes(2, "ping")).msgid == 2);
  }
}

TEST_CASE(
    "app session: what was asked before the garbage is answered before closing or not at all, never "
    "wrongly") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  client.send(plain_bytes(1, "ping") + "\xc1");
  client.wait_for_close();
  const auto reply = protocol::read_reply(testing::as_bytes(client.rest()), protocol::kMaxReplyBytes);
  const bool is_clean =
      client.rest().empty() || (reply.kind == protocol::Reply::Kind::reply && reply.msgid == 1);
  CHECK(is_clean);
}

TEST_CASE("app session: a request whose end is unknown is refused, then the connection closes") {
  ServerScene scene;
  scene.open();
  const std::vector<std::pair<std::string, std::string>> requests = {
      {encode::allow(2, std::string(2000, '\x91')), "bad_request: malformed, or nested more than 8 deep"},
      {encode::allow(2, encode::array32(0xffffffff) + std::string(9000, '\xc0')),
       "too_large: request is over 8192 bytes"},
  };
  for (const auto& [bytes, error] : requests) {
    auto client = scene.client();
    client.send(plain_bytes(1, "ping") + bytes);
    const auto replies = client.replies(2);
    CHECK(replies[0].msgid == 1);
    CHECK(replies[1].msgid == 7);
    CHECK(replies[1].error == error);
    client.wait_for_close();
    CHECK(client.rest().empty());
  }
  turn_until(scene.loop, [&] { return scene.metric("connections") == 0; });
}

TEST_CASE("app session: queries that wait when the stream is given up are answered before it closes") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  client.send(allow_bytes(1, "open", 50'000'000) + encode::allow(2, std::string(2000, '\x91')));
  CHECK(client.reply().error.starts_with("bad_request"));
  turn_on(scene.loop);
  CHECK_FALSE(client.is_closed());
  scene.fake.grant(scene.fake.asked.at(0), scene.loop.now());
  CHECK(client.reply().msgid == 1);
  client.wait_for_close();
}

TEST_CASE("app session: notifications are counted and passed over") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  const std::string event = encode::array(3) + encode::integer(2) + encode::str("event") + encode::array(0);
  client.send(event + plain_bytes(1, "ping") + event);
  CHECK(client.reply().msgid == 1);
  turn_until(scene.loop, [&] { return scene.metric("notifications_total") == 2; });
  CHECK(client.rest().empty());
}

TEST_CASE("app session: half a request is waited for and then dropped with its connection") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  const std::string bytes = allow_bytes(1, "open");
  client.send(bytes.substr(0, 10));
  turn_on(scene.loop);
  CHECK_FALSE(client.is_closed());
  client.end_sending();
  client.wait_for_close();
  CHECK(client.rest().empty());
  CHECK(scene.fake.asked.empty());
}

TEST_CASE("app session: a client that has stopped sending still gets all its answers") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  client.send(allow_bytes(1, "open", 50'000'000) + plain_bytes(2, "ping") +
              allow_bytes(3, "open", 50'000'000));
  client.end_sending();
  CHECK(client.reply().msgid == 2);
  turn_on(scene.loop);
  CHECK_FALSE(client.is_closed());
  scene.fake.grant(scene.fake.asked.at(0), scene.loop.now());
  CHECK(client.reply().msgid == 1);
  turn_on(scene.loop);
  CHECK_FALSE(client.is_closed());
  scene.fake.grant(scene.fake.asked.at(1), scene.loop.now());
  CHECK(client.reply().msgid == 3);
  client.wait_for_close();
  turn_until(scene.loop, [&] { return scene.metric("connections") == 0; });
}

TEST_CASE("app session: a client that goes away while its queries wait harms nobody") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto staying = scene.client();
  {
    auto client = scene.client();
    client.send(allow_bytes(1, "open", 50'000'000) + allow_bytes(2, "closed", 3000) +
                allow_bytes(3, "open", 50'000'000));
    scene.wait_for_questions(3);
  }
  staying.send(allow_bytes(4, "open", 50'000'000));
  scene.wait_for_questions(4);
  turn_until(scene.loop, [&] { return scene.metric("queries_expired_total") == 1; });
  scene.fake.grant(scene.fake.asked[0], scene.loop.now());
  scene.fake.grant(scene.fake.asked[3], scene.loop.now());
  CHECK(staying.reply().msgid == 4);
  scene.fake.grant(scene.fake.asked[2], scene.loop.now());
  scene.fake.grant(scene.fake.asked[1], scene.loop.now());  // late
  turn_until(scene.loop, [&] { return scene.metric("connections") == 1; });
  CHECK(staying.ask(plain_bytes(5, "ping")).msgid == 5);
}

TEST_CASE("app session: a client with too many open queries is refused more, and only it") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto greedy = scene.client();
  auto modest = scene.client();
  std::string bytes;
  for (std::uint32_t i = 0; i < AppSession::kMaxOpenQueries; ++i) bytes += allow_bytes(i, "open", 50'000'000);
  greedy.send(bytes);
  scene.wait_for_questions(AppSession::kMaxOpenQueries);
  const SeenReply refused = greedy.ask(allow_bytes(1'000'000, "open"));
  CHECK(refused.msgid == 1'000'000);
  CHECK(refused.error.starts_with("overloaded: "));
  CHECK(greedy.ask(plain_bytes(1'000'001, "ping")).error.empty());
  CHECK(scene.metric("requests_overloaded_total") == 1);

  modest.send(allow_bytes(1, "open", 50'000'000));
  scene.wait_for_questions(AppSession::kMaxOpenQueries + 1);
  scene.fake.grant(scene.fake.asked[0], scene.loop.now());
  CHECK(greedy.reply().msgid == 0);
  greedy.send(allow_bytes(1'000'002, "open", 50'000'000));
  scene.wait_for_questions(AppSession::kMaxOpenQueries + 2);

  for (std::size_t i = 1; i < scene.fake.asked.size(); ++i)
    scene.fake.grant(scene.fake.asked[i], scene.loop.now());
  CHECK(greedy.replies(AppSession::kMaxOpenQueries).size() == AppSession::kMaxOpenQueries);
  CHECK(modest.reply().msgid == 1);
}

TEST_CASE("app session: a flood is served whole and in order, and a neighbour in between") {
  ServerScene scene;
  scene.open();
  auto flooding = scene.client();
  auto neighbour = scene.client();
  constexpr std::uint32_t kRequests = 50'000;
  std::string bytes;
  for (std::uint32_t i = 0; i < kRequests; ++i) bytes += allow_bytes(i, "open");
  std::string_view rest = bytes;
  std::uint32_t next = 0;
  int neighbours = 0;
  while (next < kRequests) {
    const long sent = flooding.send_some(rest.substr(0, 500'000));
    REQUIRE(sent >= 0);
    rest.remove_prefix(static_cast<std::size_t>(sent));
    CHECK(neighbour.ask(plain_bytes(7, "ping")).msgid == 7);
    ++neighbours;
    const std::uint32_t served = static_cast<std::uint32_t>(scene.fake.asked.size());
    if (served == next) continue;
    for (const SeenReply& reply : flooding.replies(served - next)) REQUIRE(reply.msgid == next++);
  }
  CHECK(neighbours > 3);
}

TEST_CASE("app session: a client that does not read is not read from, until it reads again") {
  ServerScene scene;
  scene.open();
  auto client = scene.client();
  std::string block;
  std::uint32_t written = 0;
  while (block.size() < 100'000) block += allow_bytes(written++, "open");
  const std::uint32_t in_block = written;
  // Writes blocks until nothing is taken any more, however often the loop turns.
  std::size_t taken = 0;
  for (int idle = 0; idle < 20;) {
    const long sent = client.send_some(std::string_view(block).substr(taken % block.size()));
    REQUIRE(sent >= 0);
    idle = sent == 0 ? idle + 1 : 0;
    taken += static_cast<std::size_t>(sent);
    turn_on(scene.loop, 1);
    REQUIRE(taken < 100'000'000);
  }
  const std::size_t served = scene.fake.asked.size();
  turn_on(scene.loop, 20);
  CHECK(scene.fake.asked.size() == served);
  CHECK(scene.metric("connections") == 1);

  // Now it reads: every request that was taken whole gets its answer.
  const std::size_t whole = taken / block.size() * in_block;
  CHECK(client.replies(whole).size() == whole);
  client.end_sending();
  client.wait_for_close();
}

TEST_CASE("app session: answers that come while a client does not read wait for it") {
  ServerScene scene(FakeStore::Mode::later);
  scene.open();
  auto client = scene.client();
  std::string bytes;
  for (std::uint32_t i = 0; i < AppSession::kMaxOpenQueries; ++i) bytes += allow_bytes(i, "open", 50'000'000);
  client.send(bytes);
  scene.wait_for_questions(AppSession::kMaxOpenQueries);
  for (const auto& asked : scene.fake.asked) scene.fake.grant(asked, scene.loop.now());
  turn_on(scene.loop);
  const auto replies = client.replies(AppSession::kMaxOpenQueries);
  for (std::uint32_t i = 0; i < replies.size(); ++i) REQUIRE(replies[i].msgid == i);
}

}  // namespace
}  // namespace allowd::io
