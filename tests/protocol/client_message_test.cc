// SPDX-License-Identifier: MIT
#include "protocol/client_message.h"

#include <limits>
#include <string>
#include <vector>

#include "protocol/caps.h"
#include "protocol/reply.h"
#include "protocol/request.h"
#include "tests/support/bytes.h"
#include "tests/support/encode.h"
#include "tests/support/printing.h"

namespace allowd::protocol {
namespace {

namespace encode = testing::encode;
using encode::array;
using encode::integer;
using encode::nil;
using encode::str;

std::string query_bytes(std::uint32_t msgid, const QueryArgument& query) {
  ByteBuffer out;
  write_query(out, msgid, query);
  return std::string(out.view());
}

QueryArgument allow_query(std::string_view limit, std::string_view key) {
  QueryArgument query;
  query.method = "allow";
  query.limit.name = limit;
  query.key = key;
  return query;
}

TEST_CASE("client message: a query is an array in minimal encodings") {
  QueryArgument query = allow_query("api", "user-1");
  CHECK(testing::to_hex(query_bytes(7, query)) ==
        testing::to_hex(encode::allow(3, str("api") + str("user-1") + integer(1))));
  query.cost = 300;
  query.deadline_us = 45000;
  CHECK(testing::to_hex(query_bytes(7, query)) ==
        testing::to_hex(encode::allow(4, str("api") + str("user-1") + integer(300) + encode::map(1) +
                                             str("deadline_us") + integer(45000))));
  query.method = "peek";
  CHECK(testing::to_hex(query_bytes(7, query)) ==
        testing::to_hex(
            encode::request(integer(7), "peek", array(3) + str("api") + str("user-1") + integer(300))));
}

TEST_CASE("client message: a limit of its own is sent as a table") {
  QueryArgument query = allow_query("checkout", "k");
  query.limit.rate = "100/s";
  CHECK(testing::to_hex(query_bytes(7, query)) ==
        testing::to_hex(encode::allow(3, encode::map(2) + str("name") + str("checkout") + str("rate") +
                                             str("100/s") + str("k") + integer(1))));
  query.limit.burst = 200;
  CHECK(testing::to_hex(query_bytes(7, query)) ==
        testing::to_hex(encode::allow(3, encode::map(3) + str("name") + str("checkout") + str("rate") +
                                             str("100/s") + str("burst") + integer(200) + str("k") +
                                             integer(1))));
}

TEST_CASE("client message: the agent reads what a client writes") {
  for (const std::uint64_t cost :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{128}, std::uint64_t{1} << 40}) {
    for (const std::string& key :
         {std::string(), std::string("k"), std::string("\xff\0", 2), std::string(1024, 'k')}) {
      QueryArgument query = allow_query("api", key);
      query.cost = cost;
      query.deadline_us = cost + 5;
      const std::string bytes = query_bytes(0xfffffffe, query);
      const Message message = read_message(testing::as_bytes(bytes));
      REQUIRE(message.kind == Message::Kind::request);
      CHECK(message.size == bytes.size());
      CHECK_FALSE(message.request.refusal.has_value());
      CHECK(message.request.msgid == 0xfffffffe);
      CHECK(message.request.method == Method::allow);
      CHECK(message.request.query.limit == "api");
      CHECK(message.request.query.key == key);
      CHECK(message.request.query.cost == static_cast<std::int64_t>(cost));
      CHECK(message.request.query.deadline_us == static_cast<std::int64_t>(cost + 5));
    }
  }
}

TEST_CASE("client message: the agent reads a client's own limit") {
  QueryArgument query = allow_query("checkout", "k");
  query.limit.rate = "100/s";
  query.limit.burst = 70'000;
  const std::string bytes = query_bytes(1, query);
  const Message message = read_message(testing::as_bytes(bytes));
  REQUIRE(message.kind == Message::Kind::request);
  CHECK_FALSE(message.request.refusal.has_value());
  const auto& defined = message.request.query.defined_inline;
  REQUIRE(defined.has_value());
  CHECK(defined->name == "checkout");
  CHECK(defined->tiers[0].rate == "100/s");
  CHECK(defined->tiers[0].burst == 70'000);
}

TEST_CASE("client message: the agent reads requests without params") {
  const std::vector<std::pair<std::string, Method>> methods = {
      {"ping", Method::ping}, {"info", Method::info}, {"stats", Method::stats}};
  for (const auto& [name, method] : methods) {
    ByteBuffer out;
    write_plain_request(out, 300, name);
    const Message message = read_message(testing::as_bytes(out.view()));
    CHECK(message.kind == Message::Kind::request);
    CHECK(message.request.method == method);
    CHECK(message.request.msgid == 300);
    CHECK_FALSE(message.request.refusal.has_value());
  }
}

Reply read(const std::string& bytes, std::size_t cap = kMaxReplyBytes) {
  return read_reply(testing::as_bytes(bytes), cap);
}

TEST_CASE("client message: a client reads the decision that an agent writes, field by field") {
  const Decision decision{.allowed = false,
                          .limit = 100,
                          .remaining = 3,
                          .retry_after_us = 1'234'567,
                          .reset_after_us = 99'000'000'000,
                          .verdict = Verdict::limited,
                          .source = Source::fallback,
                          .tier = "day",
                          .window_us = 86'400'000'000,
                          .more_after_us = 1};
  ByteBuffer out;
  write_decision(out, 0xffffffff, decision);
  const std::string bytes(out.view());
  const Reply reply = read(bytes);
  REQUIRE(reply.kind == Reply::Kind::reply);
  CHECK(reply.size == bytes.size());
  CHECK(reply.msgid == 0xffffffff);
  CHECK(reply.error.empty());
  Cursor cursor(reply.result);
  ReceivedDecision received;
  REQUIRE(read_decision(cursor, received));
  CHECK(cursor.at_end());
  CHECK_FALSE(received.allowed);
  CHECK(received.limit == 100);
  CHECK(received.remaining == 3);
  CHECK(received.retry_after_us == 1'234'567);
  CHECK(received.reset_after_us == 99'000'000'000);
  CHECK(received.verdict == "limited");
  CHECK(received.source == "fallback");
  CHECK(received.tier == "day");
  CHECK(received.window_us == 86'400'000'000);
  CHECK(received.more_after_us == 1);
}

TEST_CASE("client message: errors come as text, with or without a result beside them") {
  for (const std::string& result : {nil(), integer(1)}) {
    const std::string bytes =
        array(4) + integer(1) + integer(5) + str("unknown_limit: no limit is named \"x\"") + result;
    const Reply reply = read(bytes);
    REQUIRE(reply.kind == Reply::Kind::reply);
    CHECK(reply.error == "unknown_limit: no limit is named \"x\"");
  }
}

TEST_CASE("client message: a reply that is cut off anywhere is incomplete") {
  ByteBuffer out;
  write_decision(out, 70'000, Decision{.verdict = Verdict::unavailable, .tier = "second"});
  const std::string bytes(out.view());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const testing::ExactCopy part(bytes.substr(0, size));
    CHECK(read_reply(part.span(), kMaxReplyBytes).kind == Reply::Kind::incomplete);
  }
}

TEST_CASE("client message: elements that a later agent adds are passed over") {
  ByteBuffer out;
  write_decision(out, 1, Decision{.allowed = true, .limit = 5});
  std::string bytes(out.view());
  const std::string head = array(4) + integer(1) + integer(1) + nil();
  const std::string elements = bytes.substr(head.size() + 1);
  const std::string longer = array(5) + head.substr(1) + array(12) + elements + encode::map(1) + str("a") +
                             array(0) + integer(3) + str("one more element of the message");
  const Reply reply = read(longer);
  REQUIRE(reply.kind == Reply::Kind::reply);
  CHECK(reply.size == longer.size());
  Cursor cursor(reply.result);
  ReceivedDecision received;
  REQUIRE(read_decision(cursor, received));
  CHECK(received.allowed);
  CHECK(received.limit == 5);
  CHECK(cursor.at_end());
}

TEST_CASE("client message: verdicts and sources of a newer agent stay what they are") {
  const std::string result = array(10) + encode::boolean(true) + integer(1) + integer(1) + integer(0) +
                             integer(0) + str("maybe") + encode::bin8("moon") + str("t") + integer(0) +
                             integer(0);
  Cursor cursor(testing::as_bytes(result));
  ReceivedDecision received;
  REQUIRE(read_decision(cursor, received));
  CHECK(received.verdict == "maybe");
  CHECK(received.source == "moon");
}

TEST_CASE("client message: a result of another shape is no decision") {
  const std::string good = encode::boolean(true) + integer(1) + integer(1) + integer(0) + integer(0) +
                           str("ok") + str("local") + str("") + integer(0) + integer(0);
  const std::vector<std::string> results = {
      nil(),
      str("pong"),
      encode::map(0),
      array(0),
      array(9) + good,
      array(10) + good.substr(0, good.size() - 1),
      array(10) + integer(1) + good.substr(1),
      array(10) + encode::boolean(true) + str("1") + good.substr(2),
      array(10) + good.substr(0, 5) + nil() + good.substr(8),
      array(11) + good,
      array(11) + good + encode::one(0xc1),
      array(10) + good.substr(0, good.size() - 1) + encode::tagged(0xcb, 0, 8),
  };
  for (const std::string& result : results) {
    CAPTURE(testing::to_hex(result));
    const testing::ExactCopy copy(result);
    Cursor cursor(copy.span());
    ReceivedDecision received;
    CHECK_FALSE(read_decision(cursor, received));
  }
}

TEST_CASE("client message: what is no reply is a violation") {
  const std::vector<std::string> messages = {
      encode::request(integer(7), "ping", array(0)),
      array(3) + integer(2) + str("event") + array(0),
      array(3) + integer(1) + integer(7) + nil(),
      array(4) + integer(1) + str("7") + nil() + nil(),
      array(4) + integer(1) + integer(7) + integer(5) + nil(),
      array(4) + integer(1) + integer(7) + array(2) + integer(0) + str("Vim's way of saying it") + nil(),
      encode::map(4) + integer(1) + integer(7) + nil() + nil() + nil() + nil() + nil() + nil(),
      integer(1),
      encode::one(0xc1),
      array(4) + encode::one(0xc1),
      "HTTP/1.1 400 Bad Request\r\n",
      std::string(20, '\x91') + nil(),
  };
  for (const std::string& bytes : messages) {
    CAPTURE(testing::to_hex(bytes));
    CHECK(read(bytes).kind == Reply::Kind::violation);
  }
}

TEST_CASE("client message: a reply may have as many bytes as its cap and not one more") {
  const std::string head = array(4) + integer(1) + integer(7) + nil();
  const auto of_size = [&](std::size_t size) {
    return head + encode::bin32(std::string(size - head.size() - 5, 'x'));
  };
  CHECK(read(of_size(1000), 1000).kind == Reply::Kind::reply);
  CHECK(read(of_size(1001), 1000).kind == Reply::Kind::violation);
  CHECK(read(of_size(1001).substr(0, 999), 1000).kind == Reply::Kind::incomplete);
  // A thousand bytes that are not whole can only become a reply that is too long.
  CHECK(read(of_size(1001).substr(0, 1000), 1000).kind == Reply::Kind::violation);
}

TEST_CASE("client message: a length of five billion costs nothing and ends at the cap") {
  const std::string bomb = array(4) + integer(1) + integer(7) + nil() + encode::array32(0xffffffff);
  CHECK(read(bomb).kind == Reply::Kind::incomplete);
  CHECK(read(bomb + std::string(kMaxReplyBytes, '\xc0')).kind == Reply::Kind::violation);
}

}  // namespace
}  // namespace allowd::protocol
