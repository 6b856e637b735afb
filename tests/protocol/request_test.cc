// SPDX-License-Identifier: MIT
#include "protocol/request.h"

#include <limits>
#include <string>
#include <vector>

#include "protocol/caps.h"
#include "tests/support/bytes.h"
#include "tests/support/encode.h"
#include "tests/support/printing.h"

namespace allowd::protocol {
namespace {

using testing::as_bytes;
using testing::ExactCopy;
namespace encode = testing::encode;
using encode::allow;
using encode::array;
using encode::integer;
using encode::map;
using encode::negative;
using encode::nil;
using encode::str;
using Kind = Message::Kind;

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

std::string repeat(std::size_t count, const std::string& bytes) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += bytes;
  return all;
}

// Reads a message that is expected to be a request; the bytes must outlive it.
Request read_request(const std::string& bytes) {
  const Message message = read_message(as_bytes(bytes));
  REQUIRE(message.kind == Kind::request);
  CHECK(message.size == bytes.size());
  CHECK_FALSE(message.ends_stream);
  return message.request;
}

Query read_query(const std::string& bytes) {
  const Request request = read_request(bytes);
  REQUIRE_FALSE(request.refusal.has_value());
  return request.query;
}

void check_refused(const std::string& bytes, ErrorCode code, std::string_view reason) {
  CAPTURE(testing::to_hex(bytes));
  const Request request = read_request(bytes);
  REQUIRE(request.refusal.has_value());
  CHECK(name_of(request.refusal->code) == name_of(code));
  CHECK(request.refusal->reason == reason);
  CHECK(request.msgid == 7);
}

void check_bad(const std::string& bytes, std::string_view reason) {
  check_refused(bytes, ErrorCode::bad_request, reason);
}

std::string limit_and_key() { return str("api") + str("k"); }

TEST_CASE("request: an allow carries limit, key, cost and deadline") {
  const std::string bytes = encode::request(
      integer(7), "allow",
      array(4) + str("api") + str("user-1") + integer(3) + map(1) + str("deadline_us") + encode::u16(45000));
  const Request request = read_request(bytes);
  CHECK(request.msgid == 7);
  CHECK(request.method == Method::allow);
  CHECK_FALSE(request.refusal.has_value());
  CHECK(request.query.limit == "api");
  CHECK_FALSE(request.query.defined_inline.has_value());
  CHECK(request.query.key == "user-1");
  CHECK(request.query.cost == 3);
  CHECK(request.query.deadline_us == 45000);
}

TEST_CASE("request: cost and options may be left out or nil and then mean their defaults") {
  for (const std::string& bytes :
       {allow(2, limit_and_key()), allow(3, limit_and_key() + nil()),
        allow(4, limit_and_key() + nil() + nil()), allow(4, limit_and_key() + integer(1) + map(0)),
        allow(4, limit_and_key() + nil() + map(1) + str("deadline_us") + nil())}) {
    CAPTURE(testing::to_hex(bytes));
    const Query query = read_query(bytes);
    CHECK(query.cost == 1);
    CHECK_FALSE(query.deadline_us.has_value());
  }
}

TEST_CASE("request: a nil burst means the default burst") {
  const std::string table = map(3) + str("name") + str("n") + str("rate") + str("5/s") + str("burst") + nil();
  const std::string bytes = allow(2, table + str("k"));
  const Query query = read_query(bytes);
  REQUIRE(query.defined_inline.has_value());
  CHECK_FALSE(query.defined_inline->tiers[0].burst.has_value());
}

TEST_CASE("request: a peek takes a cost but no options") {
  const std::string bytes = encode::request(integer(7), "peek", array(3) + limit_and_key() + integer(2));
  const Request request = read_request(bytes);
  CHECK(request.method == Method::peek);
  CHECK_FALSE(request.refusal.has_value());
  CHECK(request.query.cost == 2);
  check_bad(encode::request(integer(7), "peek", array(4) + limit_and_key() + integer(2) + nil()),
            "params must be [limit, key, cost]");
}

TEST_CASE("request: ping, info and stats take no params") {
  const std::vector<std::pair<std::string, Method>> methods = {
      {"ping", Method::ping}, {"info", Method::info}, {"stats", Method::stats}};
  for (const auto& [name, method] : methods) {
    CAPTURE(name);
    const Request request = read_request(encode::request(integer(7), name, array(0)));
    CHECK(request.method == method);
    CHECK_FALSE(request.refusal.has_value());
    check_bad(encode::request(integer(7), name, array(1) + nil()), "this method takes no params");
    check_bad(encode::request(integer(7), name, nil()), "params must be an array");
    check_bad(encode::request(integer(7), name, map(0)), "params must be an array");
  }
}

TEST_CASE("request: any integer encoding is accepted as type, msgid and cost") {
  struct Encoding {
    std::string type, seven, cost;
    std::int64_t expected_cost;
  };
  const std::vector<Encoding> encodings = {
      {encode::u8(0), encode::u8(7), encode::u8(200), 200},
      {encode::u16(0), encode::u16(7), encode::u16(200), 200},
      {encode::u32(0), encode::u32(7), encode::u32(70000), 70000},
      {encode::u64(0), encode::u64(7), encode::u64(1), 1},
      {encode::i8(0), encode::i8(7), encode::i8(1), 1},
      {encode::i16(0), encode::i16(7), encode::i16(300), 300},
      {encode::i32(0), encode::i32(7), encode::i32(70000), 70000},
      {encode::i64(0), encode::i64(7), encode::i64(kInt64Max), kInt64Max},
      {integer(0), integer(7), encode::u64(std::numeric_limits<std::uint64_t>::max()), kInt64Max},
      {integer(0), integer(7), integer(0), 0},
  };
  for (const Encoding& each : encodings) {
    const std::string bytes =
        array(4) + each.type + each.seven + str("allow") + array(3) + limit_and_key() + each.cost;
    CAPTURE(testing::to_hex(bytes));
    const Request request = read_request(bytes);
    CHECK_FALSE(request.refusal.has_value());
    CHECK(request.msgid == 7);
    CHECK(request.query.cost == each.expected_cost);
  }
}

TEST_CASE("request: a msgid of any integer is echoed, never checked") {
  const std::vector<std::pair<std::string, std::uint64_t>> ids = {
      {integer(0), 0},
      {integer(0xffffffff), 0xffffffff},
      {integer(0x100000000), 0x100000000},
      {encode::u64(std::numeric_limits<std::uint64_t>::max()), std::numeric_limits<std::uint64_t>::max()},
      {negative(-1), std::numeric_limits<std::uint64_t>::max()},
  };
  for (const auto& [encoded, msgid] : ids)
    CHECK(read_request(encode::request(encoded, "ping", array(0))).msgid == msgid);
}

TEST_CASE("request: str and bin of any width are accepted as method, limit, key, option and table fields") {
  const auto encodings = {encode::str8, encode::str16, encode::str32,
                          encode::bin8, encode::bin16, encode::bin32};
  for (const auto& text : encodings) {
    const std::string bytes = array(4) + integer(0) + integer(7) + text("allow") + array(4) + text("api") +
                              text("user-1") + integer(1) + map(1) + text("deadline_us") + integer(9);
    CAPTURE(testing::to_hex(bytes));
    const Query query = read_query(bytes);
    CHECK(query.limit == "api");
    CHECK(query.key == "user-1");
    CHECK(query.deadline_us == 9);

    const std::string table =
        map(3) + text("name") + text("n") + text("rate") + text("5/s") + text("burst") + integer(8);
    const std::string with_table = allow(2, table + text("k"));
    const Query defined = read_query(with_table);
    REQUIRE(defined.defined_inline.has_value());
    CHECK(defined.defined_inline->name == "n");
    CHECK(defined.defined_inline->tiers[0].rate == "5/s");
    CHECK(defined.defined_inline->tiers[0].burst == 8);
  }
}

TEST_CASE("request: arrays and maps may be wider than they had to be") {
  const std::string bytes = encode::array32(4) + integer(0) + integer(7) + str("allow") + encode::array16(4) +
                            limit_and_key() + integer(1) + encode::map32(1) + str("deadline_us") + integer(9);
  CHECK(read_query(bytes).deadline_us == 9);
}

TEST_CASE("request: keys are any bytes, also none") {
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  for (const std::string& key : {std::string(), std::string(1, '\0'), every_byte, std::string("ключ-鍵-🔑")}) {
    CHECK(read_query(allow(2, str("api") + str(key))).key == key);
  }
  CHECK(read_query(allow(2, str("") + str("k"))).limit.empty());
}

TEST_CASE("request: a key of 1024 bytes is the longest") {
  CHECK(read_query(allow(2, str("api") + str(std::string(kMaxKeyBytes, 'k')))).key.size() == kMaxKeyBytes);
  check_refused(allow(2, str("api") + str(std::string(kMaxKeyBytes + 1, 'k'))), ErrorCode::too_large,
                "key is over 1024 bytes");
}

TEST_CASE("request: a limit's name of 128 bytes is the longest, configured or brought along") {
  const std::string longest(kMaxLimitNameBytes, 'n');
  CHECK(read_query(allow(2, str(longest) + str("k"))).limit == longest);
  check_bad(allow(2, str(longest + "n") + str("k")), "limit name is over 128 bytes");

  const auto table = [](const std::string& name) {
    return map(2) + str("name") + str(name) + str("rate") + str("5/s");
  };
  CHECK(read_query(allow(2, table(longest) + str("k"))).defined_inline->name == longest);
  check_bad(allow(2, table(longest + "n") + str("k")), "limit name is over 128 bytes");
}

TEST_CASE("request: a limit that is brought along keeps its own bytes as its identity") {
  const std::string table =
      map(3) + str("burst") + integer(200) + str("rate") + str("100/s") + str("name") + str("checkout");
  const std::string bytes = allow(2, table + str("k"));
  const Query query = read_query(bytes);
  REQUIRE(query.defined_inline.has_value());
  CHECK(query.defined_inline->name == "checkout");
  CHECK(query.defined_inline->tiers[0].rate == "100/s");
  CHECK(query.defined_inline->tiers[0].burst == 200);
  CHECK(query.defined_inline->encoded == table);
  CHECK(query.limit.empty());
  CHECK(query.key == "k");
}

TEST_CASE("request: what is wrong with a limit that is brought along is said") {
  const auto refused = [](const std::string& table, std::string_view reason) {
    check_bad(allow(2, table + str("k")), reason);
  };
  const std::string name = str("name") + str("n"), rate = str("rate") + str("5/s");
  refused(map(0), "a limit table needs a name");
  refused(map(1) + rate, "a limit table needs a name");
  refused(map(2) + str("name") + str("") + rate, "a limit table needs a name");
  refused(map(1) + name, "a limit table needs a rate, or tiers");
  refused(map(2) + str("name") + integer(1) + rate, "limit.name must be a string");
  refused(map(2) + str("name") + nil() + rate, "limit.name must be a string");
  refused(map(2) + name + str("rate") + integer(100), "limit.rate must be a string like \"100/s\"");
  refused(map(2) + name + str("rate") + nil(), "limit.rate must be a string like \"100/s\"");
  refused(map(3) + name + rate + str("burst") + str("5"), "limit.burst must be an integer");
  const std::string_view once =
      "a limit table takes name, rate, burst, algorithm, align and tiers, each once";
  refused(map(3) + name + rate + str("tiers") + array(0), "rate cannot stand beside tiers");
  refused(map(3) + name + rate + str("Burst") + integer(5), once);
  refused(map(3) + name + name + rate, once);
  refused(map(3) + name + rate + rate, once);
  refused(map(4) + name + rate + str("burst") + integer(5) + str("burst") + integer(5), once);
  refused(map(2) + integer(1) + str("n") + rate, "a limit table's keys must be strings");
}

TEST_CASE("request: what is wrong with the params is said") {
  const std::string_view shape = "params must be [limit, key, cost, options]";
  check_bad(allow(0, ""), shape);
  check_bad(allow(1, str("api")), shape);
  check_bad(allow(5, limit_and_key() + integer(1) + nil() + nil()), shape);
  check_bad(encode::request(integer(7), "allow", map(0)), "params must be an array");
  check_bad(encode::request(integer(7), "allow", nil()), "params must be an array");
  check_bad(encode::request(integer(7), "allow", str("api")), "params must be an array");
  check_bad(encode::request(integer(7), "peek", array(1) + str("api")), "params must be [limit, key, cost]");
  for (const std::string& limit :
       {integer(1), nil(), encode::boolean(true), array(0), encode::tagged(0xcb, 0, 8)})
    check_bad(allow(2, limit + str("k")), "limit must be a name or a table");
  for (const std::string& key : {integer(1), nil(), encode::boolean(true), array(0), map(0)})
    check_bad(allow(2, str("api") + key), "key must be a string");
  for (const std::string& cost : {str("1"), encode::boolean(true), array(0), encode::tagged(0xcb, 0, 8)})
    check_bad(allow(3, limit_and_key() + cost), "cost must be an integer");
  check_bad(allow(3, limit_and_key() + negative(-1)), "cost is negative");
  check_bad(allow(3, limit_and_key() + encode::i64(std::numeric_limits<std::int64_t>::min())),
            "cost is negative");
}

TEST_CASE("request: what is wrong with the options is said") {
  const auto refused = [](const std::string& options, std::string_view reason) {
    check_bad(allow(4, limit_and_key() + integer(1) + options), reason);
  };
  const std::string deadline = str("deadline_us");
  refused(array(0), "options must be a table");
  refused(str("x"), "options must be a table");
  refused(map(1) + integer(1) + integer(1), "an option's name must be a string");
  refused(map(1) + nil() + integer(1), "an option's name must be a string");
  for (const char* later : {"plans", "forced", "wait_us", "", "deadline", "deadline_us "})
    refused(map(1) + str(later) + integer(1), "unknown option");
  refused(map(1) + deadline + str("5"), "deadline_us must be an integer");
  refused(map(1) + deadline + encode::tagged(0xcb, 0, 8), "deadline_us must be an integer");
  refused(map(1) + deadline + negative(-1), "deadline_us is negative");
  refused(map(2) + deadline + integer(1) + deadline + integer(2), "deadline_us stands twice");
}

TEST_CASE("request: an option that stands twice is refused also when the first is nil") {
  check_bad(allow(4, limit_and_key() + integer(1) + map(2) + str("deadline_us") + nil() + str("deadline_us") +
                         integer(2)),
            "deadline_us stands twice");
}

TEST_CASE("request: a deadline may be zero or beyond all bounds") {
  const auto with_deadline = [](const std::string& deadline) {
    return allow(4, limit_and_key() + integer(1) + map(1) + str("deadline_us") + deadline);
  };
  CHECK(read_query(with_deadline(integer(0))).deadline_us == 0);
  CHECK(read_query(with_deadline(encode::u64(std::numeric_limits<std::uint64_t>::max()))).deadline_us ==
        kInt64Max);
}

TEST_CASE("request: a method that we do not have is unknown whatever its params are") {
  for (const char* name : {"", "Allow", "allow ", "allow_manys", "reserve", "refunds", "nvim_get_api_info"}) {
    check_refused(encode::request(integer(7), name, array(0)), ErrorCode::unknown_method,
                  "no such method on this socket");
    check_refused(encode::request(integer(7), name, map(1) + nil() + encode::boolean(false)),
                  ErrorCode::unknown_method, "no such method on this socket");
  }
}

TEST_CASE("request: a method that is no string, or a request of another shape, is bad but keeps the stream") {
  check_bad(array(4) + integer(0) + integer(7) + integer(1) + array(0), "method must be a string");
  check_bad(array(4) + integer(0) + integer(7) + nil() + array(0), "method must be a string");
  check_bad(array(3) + integer(0) + integer(7) + str("ping"), "a request is [0, msgid, method, params]");
  check_bad(array(5) + integer(0) + integer(7) + str("ping") + array(0) + nil(),
            "a request is [0, msgid, method, params]");
}

TEST_CASE("request: extra bytes belong to the next message") {
  const std::string first = encode::request(integer(1), "ping", array(0));
  const std::string both = first + encode::request(integer(2), "ping", array(0));
  const Message message = read_message(as_bytes(both));
  CHECK(message.kind == Kind::request);
  CHECK(message.size == first.size());
  const Message next = read_message(as_bytes(both).subspan(message.size));
  CHECK(next.kind == Kind::request);
  CHECK(next.request.msgid == 2);
}

TEST_CASE("request: no bytes are an incomplete message") {
  const Message message = read_message({});
  CHECK(message.kind == Kind::incomplete);
  CHECK(message.size == 0);
}

TEST_CASE("request: a message that is cut off anywhere is incomplete, never an error") {
  const std::vector<std::string> messages = {
      encode::request(integer(7), "allow",
                      array(4) + str("api") + encode::bin32("user-1") + encode::i64(3) + map(1) +
                          str("deadline_us") + encode::u16(45000)),
      allow(2, encode::map16(3) + str("name") + encode::str16(std::string(50, 'n')) + str("rate") +
                   str("5/s") + str("burst") + encode::u64(7) + str("k")),
      encode::request(encode::u64(7), "stats", array(0)),
      encode::request(integer(7), "nothing", encode::array32(1) + map(1) + nil() + array(0)),
      array(3) + integer(2) + str("event") + array(2) + nil() + encode::tagged(0xc7, 3, 1) + "tabc",
      allow(3, limit_and_key() + negative(-1)),
  };
  for (const std::string& bytes : messages) {
    CAPTURE(testing::to_hex(bytes));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      CAPTURE(size);
      const ExactCopy part(bytes.substr(0, size));
      const Message message = read_message(part.span());
      CHECK(message.kind == Kind::incomplete);
      CHECK(message.size == 0);
    }
    const ExactCopy whole(bytes);
    CHECK(read_message(whole.span()).size == bytes.size());
  }
}

TEST_CASE("request: a notification is passed over") {
  const std::string bytes = array(3) + integer(2) + str("event") + array(1) + integer(1);
  const Message message = read_message(as_bytes(bytes));
  CHECK(message.kind == Kind::notification);
  CHECK(message.size == bytes.size());
}

TEST_CASE("request: what is no request or notification breaks the stream") {
  const std::vector<std::string> messages = {
      encode::array(4) + integer(1) + integer(7) + nil() + str("pong"),  // a reply
      array(4) + integer(2) + str("event") + array(0) + nil(),           // a notification of four
      array(4) + integer(3) + integer(7) + str("ping") + array(0),       // no such type
      array(4) + negative(-1) + integer(7) + str("ping") + array(0),
      array(4) + nil() + integer(7) + str("ping") + array(0),
      array(4) + str("0") + integer(7) + str("ping") + array(0),
      array(4) + integer(0) + str("7") + str("ping") + array(0),  // nobody to answer
      array(4) + integer(0) + nil() + str("ping") + array(0),
      array(4) + integer(0) + encode::tagged(0xcb, 0, 8) + str("ping") + array(0),
      array(0),
      array(1) + integer(0),
      array(2) + integer(0) + integer(7),
      map(4) + integer(0) + integer(7) + str("ping") + array(0),
      integer(0),
      nil(),
      str("ping"),
      encode::one(0xc1),
      "GET / HTTP/1.1\r\n\r\n",
      "ping\n",
      array(3) + integer(2) + encode::one(0xc1) + nil(),
  };
  for (const std::string& bytes : messages) {
    CAPTURE(testing::to_hex(bytes));
    CHECK(read_message(as_bytes(bytes)).kind == Kind::violation);
  }
}

void check_ends(const std::string& bytes, ErrorCode code, std::string_view reason) {
  CAPTURE(testing::to_hex(bytes.substr(0, 64)));
  const ExactCopy copy(bytes);
  const Message message = read_message(copy.span());
  REQUIRE(message.kind == Kind::request);
  CHECK(message.ends_stream);
  CHECK(message.request.msgid == 7);
  REQUIRE(message.request.refusal.has_value());
  CHECK(name_of(message.request.refusal->code) == name_of(code));
  CHECK(message.request.refusal->reason == reason);
}

TEST_CASE("request: one whose end cannot be found is refused by name and ends the stream") {
  const std::string_view malformed = "malformed, or nested more than 8 deep";
  check_ends(encode::request(integer(7), "allow", array(2) + encode::one(0xc1)), ErrorCode::bad_request,
             malformed);
  check_ends(array(4) + integer(0) + integer(7) + encode::one(0xc1), ErrorCode::bad_request, malformed);
  check_ends(allow(2, str("api") + repeat(10, array(1)) + nil()), ErrorCode::bad_request, malformed);
  check_ends(allow(2, repeat(4000, array(1))), ErrorCode::bad_request, malformed);
  check_ends(allow(2, repeat(4000, map(1) + nil())), ErrorCode::bad_request, malformed);
}

TEST_CASE("request: eight levels are the deepest, the message's own array being the first") {
  // Levels 1 and 2 are the message and its params.
  const auto nested = [](std::size_t levels) {
    return encode::request(integer(7), "nothing", array(1) + repeat(levels - 3, array(1)) + array(0));
  };
  const std::string deepest = nested(kMaxDepth);
  check_refused(deepest, ErrorCode::unknown_method, "no such method on this socket");
  check_ends(nested(kMaxDepth + 1), ErrorCode::bad_request, "malformed, or nested more than 8 deep");
}

TEST_CASE("request: a length that claims more than will ever come waits for no more than 8 KiB") {
  const std::vector<std::string> heads = {
      encode::request(integer(7), "allow", encode::array32(0xffffffff)),
      encode::request(integer(7), "ping", encode::map32(0xffffffff)),
      allow(2, str("api") + encode::tagged(0xdb, 0xffffffff, 4)),
      allow(2, str("api") + encode::tagged(0xc6, 0xffffffff, 4)),
      allow(2, encode::map32(0xffffffff)),
      array(4) + integer(0) + integer(7) + encode::tagged(0xdb, 0xffffffff, 4),
  };
  for (const std::string& head : heads) {
    CAPTURE(testing::to_hex(head));
    CHECK(read_message(as_bytes(head)).kind == Kind::incomplete);
    const std::string full = head + repeat(kMaxRequestBytes - head.size(), nil());
    CHECK(read_message(as_bytes(full)).kind == Kind::incomplete);
    check_ends(full + nil(), ErrorCode::too_large, "request is over 8192 bytes");
  }
}

TEST_CASE("request: five hostile bytes alone neither crash nor are taken for a message") {
  for (const std::string& bytes :
       {encode::array32(0xffffffff), encode::map32(0xffffffff), encode::tagged(0xdb, 0xffffffff, 4),
        encode::tagged(0xc6, 0xffffffff, 4), encode::tagged(0xc9, 0xffffffff, 4)}) {
    CAPTURE(testing::to_hex(bytes));
    const ExactCopy copy(bytes);
    const Message message = read_message(copy.span());
    const bool is_array = static_cast<unsigned char>(bytes[0]) == 0xdd;
    CHECK(message.kind == (is_array ? Kind::incomplete : Kind::violation));
  }
}

TEST_CASE("request: 8192 bytes are the largest, to the byte") {
  // Only params that no method reads can make a request that large.
  const auto of_size = [](std::size_t size) {
    const std::string head = array(4) + integer(0) + integer(7) + str("nothing") + array(1);
    constexpr std::size_t kHeader = 3;
    return head + encode::bin16(std::string(size - head.size() - kHeader, 'x'));
  };
  const std::string largest = of_size(kMaxRequestBytes);
  REQUIRE(largest.size() == kMaxRequestBytes);
  check_refused(largest, ErrorCode::unknown_method, "no such method on this socket");
  check_ends(of_size(kMaxRequestBytes + 1), ErrorCode::too_large, "request is over 8192 bytes");
}

TEST_CASE("request: one that reads well is refused all the same when it is over 8192 bytes") {
  const auto with_rate = [](std::size_t size) {
    return allow(
        2, map(2) + str("name") + str("n") + str("rate") + encode::str16(std::string(size, '1')) + str("k"));
  };
  const std::size_t around = with_rate(0).size();
  CHECK(read_query(with_rate(kMaxRequestBytes - around)).defined_inline->tiers[0].rate.size() ==
        kMaxRequestBytes - around);
  check_ends(with_rate(kMaxRequestBytes - around + 1), ErrorCode::too_large, "request is over 8192 bytes");
}

TEST_CASE("request: a notification that is too large ends the stream without an answer") {
  const std::string bytes = array(3) + integer(2) + str("event") + encode::bin16(std::string(9000, 'x'));
  CHECK(read_message(as_bytes(bytes)).kind == Kind::violation);
}

TEST_CASE("request: bytes behind a whole request do not count towards its size") {
  const std::string first = encode::request(integer(7), "ping", array(0));
  const std::string bytes = first + std::string(3 * kMaxRequestBytes, '\xc1');
  const Message message = read_message(as_bytes(bytes));
  CHECK(message.kind == Kind::request);
  CHECK_FALSE(message.ends_stream);
  CHECK(message.size == first.size());
  CHECK_FALSE(message.request.refusal.has_value());
}

TEST_CASE("request: views point into the bytes that were handed in") {
  const std::string bytes = allow(2, map(2) + str("name") + str("n") + str("rate") + str("5/s") + str("key"));
  const Query query = read_query(bytes);
  const auto is_inside = [&](std::string_view view) {
    return view.data() >= bytes.data() && view.data() + view.size() <= bytes.data() + bytes.size();
  };
  CHECK(is_inside(query.key));
  CHECK(is_inside(query.defined_inline->name));
  CHECK(is_inside(query.defined_inline->tiers[0].rate));
  CHECK(is_inside(query.defined_inline->encoded));
}

TEST_CASE("request: error codes have the names that PROTOCOL.md gives them") {
  CHECK(name_of(ErrorCode::bad_request) == "bad_request");
  CHECK(name_of(ErrorCode::unknown_method) == "unknown_method");
  CHECK(name_of(ErrorCode::unknown_limit) == "unknown_limit");
  CHECK(name_of(ErrorCode::too_large) == "too_large");
  CHECK(name_of(ErrorCode::overloaded) == "overloaded");
  CHECK(name_of(ErrorCode::forbidden) == "forbidden");
  CHECK(name_of(ErrorCode::shutting_down) == "shutting_down");
  CHECK(name_of(ErrorCode::internal) == "internal");
}

TEST_CASE("request: plan and force stand in the options") {
  const std::string options = map(2) + str("plan") + str("pro") + str("force") + std::string("\xc3");
  const std::string bytes = allow(4, limit_and_key() + integer(1) + options);
  const Query query = read_query(bytes);
  CHECK(query.plan == "pro");
  CHECK(query.is_forced);
  const std::string without =
      allow(4, limit_and_key() + integer(1) + map(2) + str("plan") + nil() + str("force") + nil());
  const Query plain = read_query(without);
  CHECK(plain.plan.empty());
  CHECK_FALSE(plain.is_forced);
  const auto refused = [](const std::string& options_of, std::string_view reason) {
    check_bad(allow(4, limit_and_key() + integer(1) + options_of), reason);
  };
  refused(map(1) + str("plan") + integer(1), "plan must be a string");
  refused(map(1) + str("force") + integer(1), "force must be true or false");
  refused(map(2) + str("plan") + nil() + str("plan") + nil(), "plan stands twice");
  refused(map(2) + str("force") + nil() + str("force") + nil(), "force stands twice");
}

TEST_CASE("request: what one query says does not leak into the next of a message that is used again") {
  Message message;
  std::string stream;
  stream.reserve(1000);
  const auto read = [&](const std::string& bytes) {
    const std::size_t begin = stream.size();
    stream += bytes;
    read_message(std::as_bytes(std::span(stream)).subspan(begin), message);
    REQUIRE(message.kind == Message::Kind::request);
  };
  const std::string full = allow(4, limit_and_key() + integer(7) + map(3) + str("plan") + str("pro") +
                                        str("force") + std::string("\xc3") + str("deadline_us") + integer(5));
  const std::string plain = allow(2, limit_and_key());
  read(full);
  read(plain);
  CHECK(message.request.query.plan.empty());
  CHECK_FALSE(message.request.query.is_forced);
  CHECK_FALSE(message.request.query.deadline_us.has_value());
  CHECK(message.request.query.cost == 1);
}

TEST_CASE("request: one that repeats the one in front of it says so") {
  const auto number = [](std::uint64_t msgid, const std::string& params) {
    return encode::request(integer(msgid), "allow", params);
  };
  const std::string params = array(2) + limit_and_key();
  const std::string stream = number(1, params) + number(70'000, params) + number(2, params) +
                             number(3, array(3) + limit_and_key() + integer(2)) +
                             number(4, array(3) + limit_and_key() + integer(2)) + number(5, params) +
                             encode::request(integer(6), "peek", params) + number(7, params) +
                             number(8, params);
  const auto bytes = as_bytes(stream);
  Message message;
  std::size_t used = 0;
  std::vector<bool> repeated;
  std::vector<std::uint64_t> msgids;
  while (used < bytes.size()) {
    read_message(bytes.subspan(used), message);
    REQUIRE(message.kind == Kind::request);
    CHECK(message.request.query.limit == "api");
    CHECK(message.request.query.cost == (message.request.msgid == 3 || message.request.msgid == 4 ? 2 : 1));
    repeated.push_back(message.is_repeated);
    msgids.push_back(message.request.msgid);
    used += message.size;
  }
  CHECK(msgids == std::vector<std::uint64_t>{1, 70'000, 2, 3, 4, 5, 6, 7, 8});
  CHECK(repeated == std::vector<bool>{false, true, true, false, true, false, false, false, true});
  // Half of what would repeat the first.
  Message first;
  read_message(bytes, first);
  read_message(bytes.subspan(first.size, first.size), first);
  CHECK(first.kind == Kind::incomplete);
}

TEST_CASE("request: a refund has the params of a peek") {
  const Request request =
      read_request(encode::request(integer(7), "refund", array(3) + limit_and_key() + integer(2)));
  CHECK(request.method == Method::refund);
  CHECK(request.query.cost == 2);
  check_bad(encode::request(integer(7), "refund", array(4) + limit_and_key() + integer(2) + map(0)),
            "params must be [limit, key, cost]");
}

TEST_CASE("request: a limit that is brought along may have tiers, and algorithms") {
  const auto tier = [](const std::string& name, const std::string& more, unsigned pairs) {
    return map(2 + pairs) + str("name") + str(name) + str("rate") + str("5/s") + more;
  };
  const std::string table =
      map(2) + str("name") + str("login") + str("tiers") + array(2) + tier("a", "", 0) +
      tier("b", str("algorithm") + str("fixed_window") + str("align") + str("clock"), 2);
  const std::string bytes = allow(2, table + str("k"));
  const Query query = read_query(bytes);
  REQUIRE(query.defined_inline.has_value());
  const InlineLimit& limit = *query.defined_inline;
  CHECK(limit.name == "login");
  REQUIRE(limit.tier_count == 2);
  CHECK(limit.tiers[0].name == "a");
  CHECK(limit.tiers[0].algorithm.empty());
  CHECK(limit.tiers[1].algorithm == "fixed_window");
  CHECK(limit.tiers[1].align == "clock");
  CHECK(limit.encoded == table);
  const auto refused = [](const std::string& tiers, std::string_view reason) {
    check_bad(allow(2, map(2) + str("name") + str("n") + str("tiers") + tiers + str("k")), reason);
  };
  refused(array(0), "limit.tiers must be an array of tables");
  refused(str("x"), "limit.tiers must be an array of tables");
  refused(array(1) + integer(1), "limit.tiers must be an array of tables");
  refused(array(1) + map(1) + str("rate") + str("1/s"), "a tier's name has 1 to 128 bytes");
  refused(array(1) + map(1) + str("name") + str("a"), "a tier needs a rate");
  refused(array(1) + tier("a", str("shadow") + std::string("\xc3"), 1),
          "a limit table takes name, rate, burst, algorithm, align and tiers, each once");
  std::string nine = array(9);
  for (int i = 0; i < 9; ++i) nine += tier(std::to_string(i), "", 0);
  refused(nine, "a limit has at most 8 tiers");
  check_bad(allow(2, map(3) + str("name") + str("n") + str("tiers") + array(1) + tier("a", "", 0) +
                         str("burst") + integer(5) + str("k")),
            "rate and burst cannot stand beside tiers");
}

std::string many(unsigned count, const std::string& params) {
  return encode::request(integer(7), "allow_many", array(count) + params);
}

TEST_CASE("request: allow_many carries its items, mode and options") {
  const std::string items =
      array(2) + array(2) + limit_and_key() + array(3) + str("ip") + str("1") + integer(4);
  for (const auto& [bytes, is_all] : {std::pair{many(1, items), false},
                                      {many(2, items + nil()), false},
                                      {many(2, items + str("each")), false},
                                      {many(2, items + str("all")), true},
                                      {many(3, items + str("all") + nil()), true}}) {
    CAPTURE(testing::to_hex(bytes));
    const Request request = read_request(bytes);
    CHECK(request.method == Method::allow_many);
    CHECK(request.all_or_none == is_all);
    REQUIRE(request.items.size() == 2);
    CHECK(request.items[0].limit == "api");
    CHECK(request.items[0].cost == 1);
    CHECK(request.items[1].key == "1");
    CHECK(request.items[1].cost == 4);
    CHECK_FALSE(request.items[1].deadline_us.has_value());
  }
  const std::string with_options =
      many(3, items + nil() + map(2) + str("deadline_us") + integer(9) + str("plan") + str("p"));
  const Request request = read_request(with_options);
  for (const Query& item : request.items) {
    CHECK(item.deadline_us == 9);
    CHECK(item.plan == "p");
  }
  CHECK(read_request(many(1, array(0))).items.empty());
}

TEST_CASE("request: what is wrong with an allow_many is said") {
  const std::string item = array(2) + limit_and_key();
  check_bad(many(0, ""), "params must be [[[limit, key, cost], ...], mode, options]");
  check_bad(many(4, array(0) + nil() + nil() + nil()),
            "params must be [[[limit, key, cost], ...], mode, options]");
  check_bad(many(1, str("x")), "the items must be an array");
  check_bad(many(1, array(1) + array(1) + str("api")), "an item must be [limit, key, cost]");
  check_bad(many(1, array(1) + array(4) + limit_and_key() + integer(1) + nil()),
            "an item must be [limit, key, cost]");
  check_bad(many(1, array(1) + array(3) + limit_and_key() + negative(-1)), "cost is negative");
  check_bad(many(2, array(1) + item + str("some")), "mode must be \"each\" or \"all\"");
  check_bad(many(3, array(1) + item + nil() + map(1) + str("x") + nil()), "unknown option");
  std::string full = encode::tagged(0xdc, 256, 2), over = encode::tagged(0xdc, 257, 2);
  for (int i = 0; i < 257; ++i) {
    if (i < 256) full += item;
    over += item;
  }
  CHECK(read_request(many(1, full)).items.size() == 256);
  check_refused(many(1, over), ErrorCode::too_large, "there are over 256 items");
}

}  // namespace
}  // namespace allowd::protocol
