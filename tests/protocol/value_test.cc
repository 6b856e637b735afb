// SPDX-License-Identifier: MIT
#include "protocol/value.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/bytes.h"
#include "tests/support/encode.h"
#include "tests/support/printing.h"
#include "tests/support/random_message.h"

namespace allowd::protocol {
namespace {

namespace encode = testing::encode;
using encode::array;
using encode::integer;
using encode::str;

std::string encoded(const Value& value) {
  ByteBuffer out;
  value.encode(out);
  return std::string(out.view());
}

// Reads one value that is expected to take all of `bytes`.
Value decoded(const std::string& bytes) {
  Cursor cursor(testing::as_bytes(bytes));
  Value value;
  REQUIRE(read_value(cursor, value));
  CHECK(cursor.at_end());
  return value;
}

TEST_CASE("value: a map finds its entries by name and keeps their order") {
  const Value value = Value::Map{{"b", 1}, {"a", 2}, {"", 3}};
  REQUIRE(value.find("a") != nullptr);
  CHECK(value.find("a")->to_json() == "2");
  CHECK(value.find("")->to_json() == "3");
  CHECK(value.find("c") == nullptr);
  CHECK(Value(1).find("a") == nullptr);
  CHECK(value.to_json() == R"({"b": 1, "a": 2, "": 3})");
}

TEST_CASE("value: scalars, lists and maps are encoded in minimal encodings") {
  CHECK(encoded({}) == encode::nil());
  CHECK(encoded(true) == encode::boolean(true));
  CHECK(encoded(127) == integer(127));
  CHECK(encoded(-33) == encode::negative(-33));
  CHECK(encoded(std::numeric_limits<std::uint64_t>::max()) ==
        encode::u64(std::numeric_limits<std::uint64_t>::max()));
  CHECK(encoded("text") == str("text"));
  CHECK(encoded(Value::List{Value(1), Value("a")}) == array(2) + integer(1) + str("a"));
  CHECK(encoded(Value::Map{{"k", Value::List{}}}) == encode::map(1) + str("k") + array(0));
  CHECK(encoded(0.5) == encode::tagged(0xcb, 0x3fe0000000000000, 8));
}

TEST_CASE("value: what was encoded is read back the same") {
  const Value value = Value::Map{{"nil", Value()},
                                 {"yes", true},
                                 {"small", 5},
                                 {"negative", -70'000},
                                 {"large", std::numeric_limits<std::uint64_t>::max()},
                                 {"least", std::numeric_limits<std::int64_t>::min()},
                                 {"half", 0.5},
                                 {"text", "ключ"},
                                 {"list", Value::List{Value(1), Value(Value::List{}), Value(Value::Map{})}},
                                 {"map", Value::Map{{"inner", Value::List{Value("x")}}}}};
  CHECK(decoded(encoded(value)).to_json() == value.to_json());
}

TEST_CASE("value: every encoding of numbers and texts is read") {
  for (const std::string& bytes : {integer(5), encode::u8(5), encode::u16(5), encode::u32(5), encode::u64(5),
                                   encode::i8(5), encode::i16(5), encode::i32(5), encode::i64(5)})
    CHECK(decoded(bytes).to_json() == "5");
  for (const std::string& bytes : {encode::i8(-5), encode::i64(-5), encode::negative(-5)})
    CHECK(decoded(bytes).to_json() == "-5");
  for (const std::string& bytes : {str("x"), encode::str32("x"), encode::bin8("x"), encode::bin32("x")})
    CHECK(decoded(bytes).to_json() == R"("x")");
  CHECK(decoded(encode::tagged(0xca, 0x3f000000, 4)).to_json() == "0.5");
}

TEST_CASE("value: keys of a map that are no text are shown as JSON") {
  const std::string bytes = encode::map(3) + integer(1) + str("one") + encode::nil() + str("nothing") +
                            array(1) + integer(2) + str("list");
  const Value value = decoded(bytes);
  REQUIRE(value.find("1") != nullptr);
  CHECK(*value.find("1")->as_string() == "one");
  REQUIRE(value.find("null") != nullptr);
  REQUIRE(value.find("[2]") != nullptr);
  CHECK(*value.find("[2]")->as_string() == "list");
}

TEST_CASE("value: an extension type keeps its place among its neighbours") {
  const std::string extension = encode::tagged(0xd4, 0x05aa, 2);
  const Value list = decoded(array(3) + integer(1) + extension + integer(3));
  REQUIRE(list.as_list() != nullptr);
  CHECK(list.as_list()->size() == 3);
  const Value map = decoded(encode::map(2) + str("a") + extension + str("b") + integer(2));
  REQUIRE(map.find("b") != nullptr);
  CHECK(map.find("b")->to_json() == "2");
  CHECK(map.as_map()->size() == 2);
  const Value keyed = decoded(encode::map(2) + extension + str("a") + str("b") + integer(2));
  REQUIRE(keyed.find("b") != nullptr);
  CHECK(keyed.find("b")->to_json() == "2");
}

TEST_CASE("value: what is malformed, cut off or too deep is not read") {
  const std::string good =
      encode::map(2) + str("a") + array(2) + integer(1) + encode::str8("x") + str("b") + encode::nil();
  for (std::size_t size = 0; size < good.size(); ++size) {
    const testing::ExactCopy part(good.substr(0, size));
    Cursor cursor(part.span());
    Value value;
    CHECK_FALSE(read_value(cursor, value));
  }
  for (const std::string& bytes :
       {encode::one(0xc1), array(1) + encode::one(0xc1), encode::array32(0xffffffff),
        encode::map32(0xffffffff), encode::tagged(0xdb, 0xffffffff, 4)}) {
    Cursor cursor(testing::as_bytes(bytes));
    Value value;
    CHECK_FALSE(read_value(cursor, value));
  }
  const std::string nested = std::string(3, '\x91') + integer(1);
  for (std::size_t depth = 0; depth < 5; ++depth) {
    Cursor cursor(testing::as_bytes(nested));
    Value value;
    CHECK(read_value(cursor, value, depth) == (depth >= 3));
  }
}

TEST_CASE("value: only one value is taken off the front") {
  const std::string bytes = integer(1) + str("two");
  Cursor cursor(testing::as_bytes(bytes));
  Value value;
  REQUIRE(read_value(cursor, value));
  CHECK(value.to_json() == "1");
  REQUIRE(read_value(cursor, value));
  CHECK(value.to_json() == R"("two")");
  CHECK_FALSE(read_value(cursor, value));
}

TEST_CASE("value: text lines name each leaf by its path") {
  const Value value =
      Value::Map{{"version", "0.1"},
                 {"degraded", false},
                 {"features", Value::List{}},
                 {"limits", Value::Map{{"api", Value::Map{{"on_failure", "allow"}, {"burst", 5}}}}},
                 {"nothing", Value()}};
  CHECK(value.to_text() ==
        "version: 0.1\n"
        "degraded: false\n"
        "features: []\n"
        "limits.api.on_failure: allow\n"
        "limits.api.burst: 5\n"
        "nothing: null\n");
}

TEST_CASE("value: JSON escapes quotes, backslashes and control characters and nothing else") {
  CHECK(quote_json("") == R"("")");
  CHECK(quote_json("a/b <é> 鍵 🔑") == "\"a/b <é> 鍵 🔑\"");
  CHECK(quote_json(R"(a"b\c)") == R"("a\"b\\c")");
  CHECK(quote_json(std::string("\0\n\x1f\x7f", 4)) == "\"\\u0000\\u000a\\u001f\x7f\"");
}

TEST_CASE("value: bytes that are no UTF-8 become the replacement character, one for each") {
  const std::vector<std::pair<std::string, int>> broken = {
      {"\xff", 1},              // never in UTF-8
      {"\x80", 1},              // a continuation without a beginning
      {"\xc3", 1},              // cut off
      {"\xe2\x82", 2},          // cut off
      {"\xc0\xaf", 2},          // overlong
      {"\xe0\x80\x80", 3},      // overlong
      {"\xf0\x80\x80\x80", 4},  // overlong
      {"\xed\xa0\x80", 3},      // a surrogate
      {"\xf4\x90\x80\x80", 4},  // beyond U+10FFFF
      {"\xf5\x80\x80\x80", 4},
  };
  for (const auto& [bytes, count] : broken) {
    CAPTURE(testing::to_hex(bytes));
    std::string expected = "\"a";
    for (int i = 0; i < count; ++i) expected += "\\ufffd";
    CHECK(quote_json("a" + bytes + "b") == expected + "b\"");
  }
  for (const char* whole :
       {"\xc2\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(quote_json(whole) == "\"" + std::string(whole) + "\"");
}

TEST_CASE("value: whatever was read from the wire is valid JSON afterwards") {
  testing::RandomMessages random(21);
  int read = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = random.value(5);
    Cursor cursor(testing::as_bytes(bytes));
    Value value;
    if (!read_value(cursor, value)) continue;
    ++read;
    const std::string json = value.to_json();
    if (!nlohmann::json::accept(json)) FAIL(testing::to_hex(bytes) << " became " << json);
  }
  CHECK(read > 15'000);
}

TEST_CASE("value: numbers that JSON does not have become null") {
  CHECK(Value(std::numeric_limits<double>::quiet_NaN()).to_json() == "null");
  CHECK(Value(std::numeric_limits<double>::infinity()).to_json() == "null");
  CHECK(Value(-std::numeric_limits<double>::infinity()).to_json() == "null");
}

TEST_CASE("value: doubles are printed so that they read back the same") {
  for (const double number : {0.1, 1e-9, 1e300, -2.5, 123456789.125}) {
    const std::string json = Value(number).to_json();
    CHECK(nlohmann::json::parse(json).get<double>() == number);
  }
}

}  // namespace
}  // namespace allowd::protocol
