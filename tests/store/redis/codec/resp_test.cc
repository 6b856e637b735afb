// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/resp.h"

#include <limits>
#include <string>
#include <vector>

#include "tests/support/printing.h"
#include "tests/support/random_message.h"

namespace allowd::store {
namespace {

TEST_CASE("resp: a command is an array of bulk strings") {
  ByteBuffer out;
  write_command(out, {"SET", "key", ""});
  CHECK(out.view() == "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$0\r\n\r\n");
}

TEST_CASE("resp: bulk strings may hold any bytes and any length") {
  ByteBuffer out;
  write_bulk(out, std::string_view("a\r\n\0\xff", 5));
  CHECK(out.view() == std::string_view("$5\r\na\r\n\0\xff\r\n", 11));
  out.clear();
  const std::string large(100'000, 'x');
  write_bulk(out, large);
  CHECK(out.view() == "$100000\r\n" + large + "\r\n");
}

TEST_CASE("resp: numbers are written in decimal, to the ends of their range") {
  const std::vector<std::pair<std::int64_t, std::string>> numbers = {
      {0, "$1\r\n0\r\n"},
      {-1, "$2\r\n-1\r\n"},
      {9'007'199'254'740'993, "$16\r\n9007199254740993\r\n"},
      {std::numeric_limits<std::int64_t>::max(), "$19\r\n9223372036854775807\r\n"},
      {std::numeric_limits<std::int64_t>::min(), "$20\r\n-9223372036854775808\r\n"},
  };
  for (const auto& [number, expected] : numbers) {
    ByteBuffer out;
    write_bulk(out, number);
    CHECK(out.view() == expected);
  }
}

TEST_CASE("resp: a header counts what follows it") {
  ByteBuffer out;
  write_command_header(out, 0);
  write_command_header(out, 123'456);
  CHECK(out.view() == "*0\r\n*123456\r\n");
}

// Feeds all of `bytes` and takes the replies off; the reply that fails ends it.
struct Outcome {
  std::vector<std::string> replies;
  bool has_failed = false;
};

std::string shown(const redisReply& reply) {
  const auto text = [&] { return std::string(reply.str, static_cast<std::size_t>(reply.len)); };
  switch (reply.type) {
    case REDIS_REPLY_STATUS: return "+" + text();
    case REDIS_REPLY_ERROR: return "-" + text();
    case REDIS_REPLY_INTEGER: return ":" + std::to_string(reply.integer);
    case REDIS_REPLY_STRING: return "$" + text();
    case REDIS_REPLY_NIL: return "nil";
    case REDIS_REPLY_ARRAY: {
      std::string all = "[";
      for (std::size_t i = 0; i < reply.elements; ++i) all += (i > 0 ? "," : "") + shown(*reply.element[i]);
      return all + "]";
    }
    default: return "?";
  }
}

Outcome read_in_pieces(std::string_view bytes, std::size_t piece) {
  ReplyReader reader;
  Outcome outcome;
  for (std::size_t at = 0; at < bytes.size() && !outcome.has_failed; at += piece) {
    if (reader.feed(bytes.substr(at, piece))) outcome.has_failed = true;
    while (!outcome.has_failed) {
      auto reply = reader.read();
      if (!reply) {
        outcome.has_failed = true;
      } else if (*reply == nullptr) {
        break;
      } else {
        outcome.replies.push_back(shown(**reply));
      }
    }
  }
  return outcome;
}

TEST_CASE("resp: replies of every kind are read") {
  const auto outcome = read_in_pieces(
      "+OK\r\n-ERR no\r\n:-9223372036854775808\r\n$4\r\na\r\nb\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"
      "*3\r\n:1\r\n$1\r\nx\r\n*1\r\n:2\r\n",
      10'000);
  CHECK_FALSE(outcome.has_failed);
  CHECK(outcome.replies == std::vector<std::string>{"+OK", "-ERR no", ":-9223372036854775808", "$a\r\nb", "$",
                                                    "nil", "nil", "[]", "[:1,$x,[:2]]"});
}

TEST_CASE("resp: replies that are split at any byte are the same replies") {
  const std::string bytes =
      "*3\r\n:12345\r\n:-7\r\n:0\r\n+OK\r\n$3\r\na\rb\r\n-NOSCRIPT none\r\n*1\r\n*1\r\n:9\r\n";
  const auto whole = read_in_pieces(bytes, bytes.size());
  REQUIRE(whole.replies.size() == 5);
  for (std::size_t piece = 1; piece < bytes.size(); ++piece) {
    CAPTURE(piece);
    const auto split = read_in_pieces(bytes, piece);
    CHECK_FALSE(split.has_failed);
    CHECK(split.replies == whole.replies);
  }
}

TEST_CASE("resp: helpers tell errors and texts apart") {
  ReplyReader reader;
  REQUIRE_FALSE(reader.feed("-ERR no\r\n:5\r\n+abc\r\n"));
  auto error = reader.read();
  REQUIRE(error);
  CHECK(is_error(*error));
  CHECK(text_of(*error) == "ERR no");
  auto number = reader.read();
  REQUIRE(number);
  CHECK_FALSE(is_error(*number));
  CHECK(text_of(*number).empty());
  auto status = reader.read();
  REQUIRE(status);
  CHECK(text_of(*status) == "abc");
  auto none = reader.read();
  REQUIRE(none);
  CHECK(*none == nullptr);
}

std::string array_of(std::size_t count) {
  std::string bytes = "*" + std::to_string(count) + "\r\n";
  for (std::size_t i = 0; i < count; ++i) bytes += ":1\r\n";
  return bytes;
}

TEST_CASE("resp: twelve bytes that announce a hundred million elements end the connection") {
  CHECK(read_in_pieces("*100000000\r\n", 100).has_failed);
  CHECK(read_in_pieces("*100000000\r\n", 1).has_failed);
}

TEST_CASE("resp: 1024 elements are the most in one array") {
  const auto most = read_in_pieces(array_of(ReplyReader::kMaxElements), 4096);
  CHECK_FALSE(most.has_failed);
  CHECK(most.replies.size() == 1);
  CHECK(read_in_pieces(array_of(ReplyReader::kMaxElements + 1), 4096).has_failed);
  CHECK(read_in_pieces("*1\r\n*1025\r\n", 100).has_failed);
}

TEST_CASE("resp: four levels of arrays are the deepest") {
  const auto nested = [](std::size_t depth) {
    std::string bytes;
    for (std::size_t i = 0; i < depth; ++i) bytes += "*1\r\n";
    return bytes + ":1\r\n";
  };
  CHECK(read_in_pieces(nested(ReplyReader::kMaxDepth), 100).replies ==
        std::vector<std::string>{"[[[[:1]]]]"});
  CHECK(read_in_pieces(nested(ReplyReader::kMaxDepth + 1), 100).has_failed);
  CHECK(read_in_pieces(nested(100'000), 65'536).has_failed);
}

TEST_CASE("resp: a bulk string of two megabytes is given up before it is whole") {
  const std::string bytes = "$2097152\r\n" + std::string(2'097'152, 'x') + "\r\n";
  CHECK(read_in_pieces(bytes, 65'536).has_failed);
  CHECK(read_in_pieces(bytes, 1000).has_failed);
}

TEST_CASE("resp: a reader may be told to expect more of the outermost array alone") {
  const auto is_read = [](std::string_view bytes) {
    ReplyReader reader({.outer_elements = 2000, .unread_bytes = 5000});
    REQUIRE_FALSE(reader.feed(bytes));
    auto reply = reader.read();
    return reply && *reply != nullptr;
  };
  CHECK(is_read(array_of(2000)));
  CHECK_FALSE(is_read(array_of(2001)));
  CHECK_FALSE(is_read("*1\r\n" + array_of(1025)));
  ReplyReader reader({.outer_elements = 2000, .unread_bytes = 5000});
  REQUIRE_FALSE(reader.feed(array_of(2000).substr(0, 5001)));
  CHECK_FALSE(reader.read());
}

TEST_CASE("resp: many small replies together may be larger than what one may be") {
  std::string bytes;
  for (int i = 0; i < 30'000; ++i) bytes += "$80\r\n" + std::string(80, 'x') + "\r\n";
  REQUIRE(bytes.size() > 2 * ReplyReader::kMaxUnreadBytes);
  const auto outcome = read_in_pieces(bytes, 65'536);
  CHECK_FALSE(outcome.has_failed);
  CHECK(outcome.replies.size() == 30'000);
}

TEST_CASE("resp: what is no reply ends the connection and the reader stays failed") {
  for (const char* bytes :
       {"HTTP/1.1 400 Bad Request\r\n", "x", "*x\r\n", ":abc\r\n", "$abc\r\n", "*-2\r\n", "$-2\r\n",
        "*99999999999999999999\r\n", "$99999999999999999999\r\n", "*2\r\n:1\r\n?"}) {
    CAPTURE(bytes);
    ReplyReader reader;
    REQUIRE_FALSE(reader.feed(bytes));
    auto reply = reader.read();
    CHECK_FALSE(reply);
    if (reply) continue;
    CHECK(reply.error().message.find("broke the protocol") != std::string::npos);
    static_cast<void>(reader.feed("+OK\r\n"));
    CHECK_FALSE(reader.read());
  }
}

TEST_CASE("resp: replies before the garbage are still read") {
  const auto outcome = read_in_pieces("+OK\r\n:1\r\n\x01", 100);
  CHECK(outcome.replies == std::vector<std::string>{"+OK", ":1"});
  CHECK(outcome.has_failed);
}

TEST_CASE("resp: noise in any pieces neither crashes nor goes on for ever") {
  testing::RandomMessages random(17);
  constexpr std::string_view kAlphabet = "*$:+-0123456789\r\nab";
  for (int round = 0; round < 5000; ++round) {
    std::string bytes;
    for (std::uint64_t size = random.below(60); size > 0; --size)
      bytes += kAlphabet[random.below(kAlphabet.size())];
    const auto outcome = read_in_pieces(bytes, 1 + random.below(20));
    CHECK(outcome.replies.size() <= bytes.size());
  }
}

}  // namespace
}  // namespace allowd::store
