// SPDX-License-Identifier: MIT
#include "protocol/cursor.h"

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/bytes.h"
#include "tests/support/encode.h"
#include "tests/support/printing.h"

namespace allowd::protocol {
namespace {

using Failure = Cursor::Failure;
using testing::as_bytes;
using testing::ExactCopy;
namespace encode = testing::encode;

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();
constexpr std::uint64_t kUint64Max = std::numeric_limits<std::uint64_t>::max();

struct IntegerCase {
  std::string bytes;
  std::int64_t as_signed;
  std::uint64_t as_unsigned;
};

std::vector<IntegerCase> integer_cases() {
  const auto same = [](std::string bytes, std::int64_t value) {
    return IntegerCase{std::move(bytes), value, static_cast<std::uint64_t>(value)};
  };
  return {
      same(encode::one(0x00), 0),
      same(encode::one(0x7f), 127),
      same(encode::one(0xff), -1),
      same(encode::one(0xe0), -32),
      same(encode::u8(0), 0),
      same(encode::u8(255), 255),
      same(encode::u16(0), 0),
      same(encode::u16(0xffff), 0xffff),
      same(encode::u32(1), 1),
      same(encode::u32(0xffffffff), 0xffffffff),
      same(encode::u64(1), 1),
      same(encode::u64(static_cast<std::uint64_t>(kInt64Max)), kInt64Max),
      {encode::u64(std::uint64_t{1} << 63), kInt64Max, std::uint64_t{1} << 63},
      {encode::u64(kUint64Max), kInt64Max, kUint64Max},
      same(encode::i8(127), 127),
      same(encode::i8(0), 0),
      same(encode::i8(-1), -1),
      same(encode::i8(-128), -128),
      same(encode::i16(32767), 32767),
      same(encode::i16(-32768), -32768),
      same(encode::i16(5), 5),
      same(encode::i32(std::numeric_limits<std::int32_t>::max()), std::numeric_limits<std::int32_t>::max()),
      same(encode::i32(std::numeric_limits<std::int32_t>::min()), std::numeric_limits<std::int32_t>::min()),
      same(encode::i64(kInt64Max), kInt64Max),
      same(encode::i64(kInt64Min), kInt64Min),
      same(encode::i64(-1), -1),
  };
}

TEST_CASE("cursor: every integer encoding is read, also wider than it had to be") {
  for (const IntegerCase& each : integer_cases()) {
    CAPTURE(testing::to_hex(each.bytes));
    const ExactCopy copy(each.bytes);
    std::int64_t number = 42;
    Cursor cursor(copy.span());
    REQUIRE(cursor.read_integer(number));
    CHECK(number == each.as_signed);
    CHECK(cursor.at_end());

    std::uint64_t wide = 42;
    Cursor again(copy.span());
    REQUIRE(again.read_unsigned(wide));
    CHECK(wide == each.as_unsigned);
    CHECK(again.at_end());
  }
}

TEST_CASE("cursor: an integer that is cut off is starved at every byte") {
  for (const IntegerCase& each : integer_cases()) {
    CAPTURE(testing::to_hex(each.bytes));
    for (std::size_t size = 0; size < each.bytes.size(); ++size) {
      const ExactCopy copy(each.bytes.substr(0, size));
      std::int64_t number = 0;
      std::uint64_t wide = 0;
      Cursor cursor(copy.span()), again(copy.span());
      CHECK_FALSE(cursor.read_integer(number));
      CHECK(cursor.failure() == Failure::starved);
      CHECK_FALSE(again.read_unsigned(wide));
      CHECK(again.failure() == Failure::starved);
    }
  }
}

TEST_CASE("cursor: str and bin of every width are read alike") {
  const std::string text("k\xff\0y", 4);
  for (const std::string& bytes :
       {encode::str(text), encode::str8(text), encode::str16(text), encode::str32(text), encode::bin8(text),
        encode::bin16(text), encode::bin32(text)}) {
    CAPTURE(testing::to_hex(bytes));
    const ExactCopy copy(bytes);
    std::string_view read;
    Cursor cursor(copy.span());
    REQUIRE(cursor.read_text(read));
    CHECK(read == text);
    CHECK(cursor.at_end());
    CHECK(read.data() == reinterpret_cast<const char*>(copy.span().data()) + bytes.size() - text.size());
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const ExactCopy part(bytes.substr(0, size));
      Cursor starved(part.span());
      CHECK_FALSE(starved.read_text(read));
      CHECK(starved.failure() == Failure::starved);
    }
  }
}

TEST_CASE("cursor: an empty text is a text") {
  for (const std::string& bytes : {encode::str(""), encode::str8(""), encode::bin8(""), encode::bin32("")}) {
    std::string_view read = "something";
    Cursor cursor(as_bytes(bytes));
    REQUIRE(cursor.read_text(read));
    CHECK(read.empty());
    CHECK(cursor.at_end());
  }
}

TEST_CASE("cursor: array and map headers of every width give their counts") {
  struct Header {
    std::string bytes;
    std::uint32_t count;
    bool is_map;
  };
  const std::vector<Header> headers = {
      {encode::one(0x90), 0, false},
      {encode::one(0x9f), 15, false},
      {encode::array16(0), 0, false},
      {encode::array16(0xffff), 0xffff, false},
      {encode::array32(0), 0, false},
      {encode::array32(0xffffffff), 0xffffffff, false},
      {encode::one(0x80), 0, true},
      {encode::one(0x8f), 15, true},
      {encode::map16(3), 3, true},
      {encode::map16(0xffff), 0xffff, true},
      {encode::map32(0xffffffff), 0xffffffff, true},
  };
  for (const Header& header : headers) {
    CAPTURE(testing::to_hex(header.bytes));
    const ExactCopy copy(header.bytes);
    std::uint32_t count = 77;
    Cursor cursor(copy.span()), other(copy.span());
    CHECK(cursor.next_is_map() == header.is_map);
    REQUIRE((header.is_map ? cursor.read_map(count) : cursor.read_array(count)));
    CHECK(count == header.count);
    CHECK(cursor.at_end());
    CHECK_FALSE((header.is_map ? other.read_array(count) : other.read_map(count)));
    CHECK(other.failure() == Failure::unexpected);
    for (std::size_t size = 0; size < header.bytes.size(); ++size) {
      const ExactCopy part(header.bytes.substr(0, size));
      Cursor starved(part.span());
      CHECK_FALSE((header.is_map ? starved.read_map(count) : starved.read_array(count)));
      CHECK(starved.failure() == Failure::starved);
    }
  }
}

TEST_CASE("cursor: nil is taken or left, and a bool is only true or false") {
  const std::string bytes =
      encode::nil() + encode::boolean(true) + encode::boolean(false) + encode::integer(1);
  Cursor cursor(as_bytes(bytes));
  bool flag = false;
  CHECK(cursor.take_nil());
  CHECK_FALSE(cursor.take_nil());
  REQUIRE(cursor.read_bool(flag));
  CHECK(flag);
  REQUIRE(cursor.read_bool(flag));
  CHECK_FALSE(flag);
  CHECK_FALSE(cursor.read_bool(flag));
  CHECK(cursor.failure() == Failure::unexpected);

  Cursor empty{std::span<const std::byte>{}};
  CHECK_FALSE(empty.take_nil());
  CHECK_FALSE(empty.next_is_map());
  CHECK_FALSE(empty.read_bool(flag));
  CHECK(empty.failure() == Failure::starved);
}

// The kinds of value that a tag byte can begin.
enum class Kind { integer, text, boolean, nil, array, map, other };

Kind kind_of(unsigned tag) {
  if (tag <= 0x7f || tag >= 0xe0 || (tag >= 0xcc && tag <= 0xd3)) return Kind::integer;
  if (tag <= 0x8f || tag == 0xde || tag == 0xdf) return Kind::map;
  if (tag <= 0x9f || tag == 0xdc || tag == 0xdd) return Kind::array;
  if (tag <= 0xbf || (tag >= 0xd9 && tag <= 0xdb) || (tag >= 0xc4 && tag <= 0xc6)) return Kind::text;
  if (tag == 0xc0) return Kind::nil;
  return tag == 0xc2 || tag == 0xc3 ? Kind::boolean : Kind::other;
}

TEST_CASE("cursor: each reader takes the tags of its own kind and refuses all others as unexpected") {
  for (unsigned tag = 0; tag <= 0xff; ++tag) {
    CAPTURE(tag);
    const std::string bytes = encode::one(tag) + std::string(64, '\0');
    std::int64_t number = 0;
    std::uint64_t wide = 0;
    std::string_view text;
    bool flag = false;
    std::uint32_t count = 0;
    const auto attempt = [&](Kind kind, const std::function<bool(Cursor&)>& read) {
      Cursor cursor(as_bytes(bytes));
      const bool is_read = read(cursor);
      CHECK(is_read == (kind_of(tag) == kind));
      CHECK(cursor.failure() == (is_read ? Failure::none : Failure::unexpected));
    };
    attempt(Kind::integer, [&](Cursor& cursor) { return cursor.read_integer(number); });
    attempt(Kind::integer, [&](Cursor& cursor) { return cursor.read_unsigned(wide); });
    attempt(Kind::text, [&](Cursor& cursor) { return cursor.read_text(text); });
    attempt(Kind::boolean, [&](Cursor& cursor) { return cursor.read_bool(flag); });
    attempt(Kind::array, [&](Cursor& cursor) { return cursor.read_array(count); });
    attempt(Kind::map, [&](Cursor& cursor) { return cursor.read_map(count); });
  }
}

TEST_CASE("cursor: skip passes over one value of any kind and stops behind it") {
  const std::string payload(300, 'x');
  const std::vector<std::string> values = {
      encode::nil(),
      encode::boolean(true),
      encode::integer(3),
      encode::negative(-5),
      encode::u64(kUint64Max),
      encode::i16(-300),
      encode::tagged(0xca, 0x3f800000, 4),
      encode::tagged(0xcb, 0x3ff0000000000000, 8),
      encode::str(""),
      encode::str(payload),
      encode::bin16(payload),
      encode::bin32(payload),
      encode::tagged(0xd4, 0x05aa, 2),           // fixext 1: type, one byte
      encode::one(0xd8) + std::string(17, 'e'),  // fixext 16
      encode::tagged(0xc7, 0, 1) + "t",          // ext 8 of no bytes
      encode::tagged(0xc8, 300, 2) + "t" + payload,
      encode::tagged(0xc9, 300, 4) + "t" + payload,
      encode::array(0),
      encode::array(2) + encode::integer(1) + encode::map(1) + encode::str("a") + encode::array(0),
      encode::map16(2) + encode::integer(1) + encode::nil() + encode::array(1) + encode::nil() +
          encode::str("v"),
  };
  for (const std::string& value : values) {
    CAPTURE(testing::to_hex(value));
    const std::string bytes = value + encode::integer(9);
    Cursor cursor(as_bytes(bytes));
    REQUIRE(cursor.skip(8));
    CHECK(cursor.position() == as_bytes(bytes).data() + value.size());
    for (std::size_t size = 0; size < value.size(); ++size) {
      const ExactCopy part(value.substr(0, size));
      Cursor starved(part.span());
      CHECK_FALSE(starved.skip(8));
      CHECK(starved.failure() == Failure::starved);
    }
  }
}

TEST_CASE("cursor: skip refuses the one tag byte that MessagePack never uses, at any place") {
  for (const std::string& before : {std::string(), encode::array(1), encode::map(1) + encode::nil()}) {
    const std::string bytes = before + encode::one(0xc1);
    Cursor cursor(as_bytes(bytes));
    CHECK_FALSE(cursor.skip(8));
    CHECK(cursor.failure() == Failure::unexpected);
  }
}

std::string nested(std::size_t depth, const std::string& level, const std::string& core) {
  std::string bytes;
  for (std::size_t i = 0; i < depth; ++i) bytes += level;
  return bytes + core;
}

TEST_CASE("cursor: skip goes as many levels deep as it is told and not one more") {
  for (const std::string& level : {encode::array(1), encode::array16(1), encode::map(1) + encode::nil()}) {
    for (std::size_t depth = 0; depth <= 16; ++depth) {
      CAPTURE(depth);
      const std::string fits = nested(depth, level, encode::integer(1));
      Cursor cursor(as_bytes(fits));
      CHECK(cursor.skip(depth));
      CHECK(cursor.at_end());

      const std::string too_deep = nested(depth + 1, level, encode::integer(1));
      Cursor refused(as_bytes(too_deep));
      CHECK_FALSE(refused.skip(depth));
      CHECK(refused.failure() == Failure::unexpected);
    }
  }
}

TEST_CASE("cursor: an empty container counts as a level") {
  const std::string bytes = encode::array(1) + encode::array(0);
  Cursor one_level(as_bytes(bytes)), two_levels(as_bytes(bytes));
  CHECK_FALSE(one_level.skip(1));
  CHECK(two_levels.skip(2));
}

TEST_CASE("cursor: a bomb of ten thousand nested arrays is refused, however many levels are asked for") {
  const std::string bomb = nested(10'000, encode::array(1), "");
  for (const std::size_t depth : {std::size_t{8}, std::size_t{16}, std::size_t{1'000'000}}) {
    Cursor cursor(as_bytes(bomb));
    CHECK_FALSE(cursor.skip(depth));
    CHECK(cursor.failure() == Failure::unexpected);
  }
}

TEST_CASE("cursor: a length that claims four billion bytes or items is merely starved") {
  for (const std::string& bytes :
       {encode::array32(0xffffffff), encode::map32(0xffffffff), encode::tagged(0xdb, 0xffffffff, 4),
        encode::tagged(0xc6, 0xffffffff, 4), encode::tagged(0xc9, 0xffffffff, 4),
        encode::array32(0xffffffff) + encode::nil(), encode::tagged(0xc9, 0xffffffff, 4) + "abc"}) {
    CAPTURE(testing::to_hex(bytes));
    const ExactCopy copy(bytes);
    Cursor cursor(copy.span());
    CHECK_FALSE(cursor.skip(8));
    CHECK(cursor.failure() == Failure::starved);
  }
}

}  // namespace
}  // namespace allowd::protocol
