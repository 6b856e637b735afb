// SPDX-License-Identifier: MIT
//
// MessagePack by hand, in whichever encoding a test wants: each call gives the bytes of one header or value,
// to be joined with +. Knows nothing of msgpack-c, so that the two can be held against each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace allowd::testing::encode {

[[nodiscard]] inline std::string tagged(unsigned tag, std::uint64_t number, std::size_t width) {
  std::string bytes(1, static_cast<char>(tag));
  for (std::size_t i = width; i > 0; --i) bytes += static_cast<char>(number >> (8 * (i - 1)) & 0xff);
  return bytes;
}
[[nodiscard]] inline std::string one(unsigned tag) { return tagged(tag, 0, 0); }

[[nodiscard]] inline std::string nil() { return one(0xc0); }
[[nodiscard]] inline std::string boolean(bool value) { return one(value ? 0xc3 : 0xc2); }

// Integers of a given width.
[[nodiscard]] inline std::string u8(std::uint64_t value) { return tagged(0xcc, value, 1); }
[[nodiscard]] inline std::string u16(std::uint64_t value) { return tagged(0xcd, value, 2); }
[[nodiscard]] inline std::string u32(std::uint64_t value) { return tagged(0xce, value, 4); }
[[nodiscard]] inline std::string u64(std::uint64_t value) { return tagged(0xcf, value, 8); }
[[nodiscard]] inline std::string i8(std::int64_t value) {
  return tagged(0xd0, static_cast<std::uint64_t>(value), 1);
}
[[nodiscard]] inline std::string i16(std::int64_t value) {
  return tagged(0xd1, static_cast<std::uint64_t>(value), 2);
}
[[nodiscard]] inline std::string i32(std::int64_t value) {
  return tagged(0xd2, static_cast<std::uint64_t>(value), 4);
}
[[nodiscard]] inline std::string i64(std::int64_t value) {
  return tagged(0xd3, static_cast<std::uint64_t>(value), 8);
}

// The shortest encoding of an integer.
[[nodiscard]] inline std::string integer(std::uint64_t value) {
  if (value < 0x80) return one(static_cast<unsigned>(value));
  if (value <= 0xff) return u8(value);
  if (value <= 0xffff) return u16(value);
  return value <= 0xffffffff ? u32(value) : u64(value);
}
[[nodiscard]] inline std::string negative(std::int64_t value) {
  if (value >= -32) return one(static_cast<unsigned>(value) & 0xff);
  if (value >= INT8_MIN) return i8(value);
  if (value >= INT16_MIN) return i16(value);
  return value >= INT32_MIN ? i32(value) : i64(value);
}

[[nodiscard]] inline std::string array(std::size_t count) {
  if (count < 16) return one(0x90 | static_cast<unsigned>(count));
  return count <= 0xffff ? tagged(0xdc, count, 2) : tagged(0xdd, count, 4);
}
[[nodiscard]] inline std::string array16(std::size_t count) { return tagged(0xdc, count, 2); }
[[nodiscard]] inline std::string array32(std::size_t count) { return tagged(0xdd, count, 4); }
[[nodiscard]] inline std::string map(std::size_t pairs) {
  if (pairs < 16) return one(0x80 | static_cast<unsigned>(pairs));
  return pairs <= 0xffff ? tagged(0xde, pairs, 2) : tagged(0xdf, pairs, 4);
}
[[nodiscard]] inline std::string map16(std::size_t pairs) { return tagged(0xde, pairs, 2); }
[[nodiscard]] inline std::string map32(std::size_t pairs) { return tagged(0xdf, pairs, 4); }

[[nodiscard]] inline std::string str8(std::string_view text) {
  return tagged(0xd9, text.size(), 1) + std::string(text);
}
[[nodiscard]] inline std::string str16(std::string_view text) {
  return tagged(0xda, text.size(), 2) + std::string(text);
}
[[nodiscard]] inline std::string str32(std::string_view text) {
  return tagged(0xdb, text.size(), 4) + std::string(text);
}
[[nodiscard]] inline std::string bin8(std::string_view text) {
  return tagged(0xc4, text.size(), 1) + std::string(text);
}
[[nodiscard]] inline std::string bin16(std::string_view text) {
  return tagged(0xc5, text.size(), 2) + std::string(text);
}
[[nodiscard]] inline std::string bin32(std::string_view text) {
  return tagged(0xc6, text.size(), 4) + std::string(text);
}
// The shortest encoding of a text.
[[nodiscard]] inline std::string str(std::string_view text) {
  if (text.size() < 32) return one(0xa0 | static_cast<unsigned>(text.size())) + std::string(text);
  if (text.size() <= 0xff) return str8(text);
  return text.size() <= 0xffff ? str16(text) : str32(text);
}

// [0, msgid, method, params], `params` being encoded already.
[[nodiscard]] inline std::string request(std::string_view msgid, std::string_view method,
                                         std::string_view params) {
  return array(4) + integer(0) + std::string(msgid) + str(method) + std::string(params);
}
// An `allow` with msgid 7, its params given as (number, encoded).
[[nodiscard]] inline std::string allow(std::size_t count, std::string_view params) {
  return request(integer(7), "allow", array(count) + std::string(params));
}

}  // namespace allowd::testing::encode
