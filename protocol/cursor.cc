// SPDX-License-Identifier: MIT
#include "protocol/cursor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace allowd::protocol {
namespace {

// Tag bytes of the MessagePack specification.
constexpr std::uint8_t kNil = 0xc0, kUnused = 0xc1, kFalse = 0xc2, kTrue = 0xc3;
constexpr std::uint8_t kBin8 = 0xc4, kExt8 = 0xc7, kFloat32 = 0xca, kFloat64 = 0xcb;
constexpr std::uint8_t kUint8 = 0xcc, kUint64 = 0xcf, kInt8 = 0xd0, kInt64 = 0xd3;
constexpr std::uint8_t kFixext1 = 0xd4, kFixext16 = 0xd8, kStr8 = 0xd9, kStr32 = 0xdb;
constexpr std::uint8_t kArray16 = 0xdc, kArray32 = 0xdd, kMap16 = 0xde, kMap32 = 0xdf;

// A length or number's width when tags come in a row for 1, 2, 4 and 8 bytes.
constexpr std::size_t width_of(std::uint8_t tag, std::uint8_t first) {
  return std::size_t{1} << (tag - first);
}

constexpr bool is_fixarray(std::uint8_t tag) { return (tag & 0xf0) == 0x90; }
constexpr bool is_fixmap(std::uint8_t tag) { return (tag & 0xf0) == 0x80; }
constexpr bool is_fixstr(std::uint8_t tag) { return (tag & 0xe0) == 0xa0; }
constexpr bool is_fixint(std::uint8_t tag) { return tag <= 0x7f || tag >= 0xe0; }
constexpr bool is_between(std::uint8_t tag, std::uint8_t low, std::uint8_t high) {
  return tag >= low && tag <= high;
}

}  // namespace

bool Cursor::read_tail(std::size_t width, std::uint64_t& value) {
  if (left() < 1 + width) return fail(Failure::starved);
  // All eight widths at once when they are there: the number's bytes end up at the top, and are shifted down.
  if (left() > 8) {
    std::memcpy(&value, at_ + 1, sizeof value);
    value = __builtin_bswap64(value) >> (64 - 8 * width);
  } else {
    value = 0;
    for (std::size_t i = 1; i <= width; ++i) value = value << 8 | at_[i];
  }
  at_ += 1 + width;
  return true;
}

bool Cursor::take_bytes(std::uint64_t count, std::string_view& bytes) {
  if (left() < count) return fail(Failure::starved);
  bytes = {reinterpret_cast<const char*>(at_), static_cast<std::size_t>(count)};
  at_ += count;
  return true;
}

bool Cursor::read_long_array(std::uint32_t& count) {
  if (at_end()) return fail(Failure::starved);
  if (!is_between(*at_, kArray16, kArray32)) return fail(Failure::unexpected);
  std::uint64_t wide = 0;
  if (!read_tail(*at_ == kArray16 ? 2 : 4, wide)) return false;
  count = static_cast<std::uint32_t>(wide);
  return true;
}

bool Cursor::read_map(std::uint32_t& count) {
  if (at_end()) return fail(Failure::starved);
  if (is_fixmap(*at_)) {
    count = *at_++ & 0x0f;
    return true;
  }
  if (!is_between(*at_, kMap16, kMap32)) return fail(Failure::unexpected);
  std::uint64_t wide = 0;
  if (!read_tail(*at_ == kMap16 ? 2 : 4, wide)) return false;
  count = static_cast<std::uint32_t>(wide);
  return true;
}

bool Cursor::read_unsigned(std::uint64_t& value) {
  if (at_end()) return fail(Failure::starved);
  const std::uint8_t tag = *at_;
  if (is_fixint(tag)) {
    value = static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int8_t>(tag)));
    ++at_;
    return true;
  }
  if (is_between(tag, kUint8, kUint64)) return read_tail(width_of(tag, kUint8), value);
  if (!is_between(tag, kInt8, kInt64)) return fail(Failure::unexpected);
  const std::size_t width = width_of(tag, kInt8);
  if (!read_tail(width, value)) return false;
  const auto shift = static_cast<unsigned>(64 - 8 * width);
  value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << shift) >> shift);  // sign-extends
  return true;
}

bool Cursor::read_long_integer(std::int64_t& value) {
  const bool is_huge_candidate = !at_end() && *at_ == kUint64;
  std::uint64_t wide = 0;
  if (!read_unsigned(wide)) return false;
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const bool is_huge = is_huge_candidate && wide > static_cast<std::uint64_t>(kMax);
  value = is_huge ? kMax : static_cast<std::int64_t>(wide);
  return true;
}

bool Cursor::read_long_text(std::string_view& text) {
  if (at_end()) return fail(Failure::starved);
  const std::uint8_t tag = *at_;
  std::uint64_t length = 0;
  if (is_between(tag, kStr8, kStr32)) {
    if (!read_tail(width_of(tag, kStr8), length)) return false;
  } else if (is_between(tag, kBin8, kBin8 + 2)) {
    if (!read_tail(width_of(tag, kBin8), length)) return false;
  } else {
    return fail(Failure::unexpected);
  }
  return take_bytes(length, text);
}

bool Cursor::read_bool(bool& value) {
  if (at_end()) return fail(Failure::starved);
  if (*at_ != kFalse && *at_ != kTrue) return fail(Failure::unexpected);
  value = *at_++ == kTrue;
  return true;
}

bool Cursor::take_nil() {
  if (at_end() || *at_ != kNil) return false;
  ++at_;
  return true;
}

bool Cursor::next_is_map() const {
  return !at_end() && (is_fixmap(*at_) || is_between(*at_, kMap16, kMap32));
}

bool Cursor::skip_scalar(std::uint8_t tag) {
  std::uint64_t number = 0;
  std::string_view bytes;
  if (is_fixint(tag) || is_between(tag, kNil, kTrue)) {
    if (tag == kUnused) return fail(Failure::unexpected);
    ++at_;
    return true;
  }
  if (is_fixstr(tag) || is_between(tag, kBin8, kBin8 + 2) || is_between(tag, kStr8, kStr32)) {
    return read_text(bytes);
  }
  if (is_between(tag, kUint8, kUint64)) return read_tail(width_of(tag, kUint8), number);
  if (is_between(tag, kInt8, kInt64)) return read_tail(width_of(tag, kInt8), number);
  if (tag == kFloat32 || tag == kFloat64) return read_tail(tag == kFloat32 ? 4 : 8, number);
  if (is_between(tag, kExt8, kExt8 + 2)) {  // a type byte precedes the payload
    return read_tail(width_of(tag, kExt8), number) && take_bytes(number + 1, bytes);
  }
  if (is_between(tag, kFixext1, kFixext16)) {
    ++at_;
    return take_bytes(1 + width_of(tag, kFixext1), bytes);
  }
  return fail(Failure::unexpected);
}

bool Cursor::skip(std::size_t depth) {
  // Values still to pass on each level; an explicit stack, so that input never decides how deep we recurse.
  constexpr std::size_t kLevels = 16;
  std::array<std::uint64_t, kLevels + 1> pending{};
  depth = std::min(depth, kLevels);
  std::size_t level = 0;
  pending[0] = 1;
  while (true) {
    while (pending[level] == 0) {
      if (level == 0) return true;
      --level;
    }
    --pending[level];
    if (at_end()) return fail(Failure::starved);
    const std::uint8_t tag = *at_;
    const bool is_map = is_fixmap(tag) || is_between(tag, kMap16, kMap32);
    const bool is_array = is_fixarray(tag) || is_between(tag, kArray16, kArray32);
    if (!is_map && !is_array) {
      if (!skip_scalar(tag)) return false;
      continue;
    }
    if (level == depth) return fail(Failure::unexpected);
    std::uint32_t count = 0;
    if (!(is_map ? read_map(count) : read_array(count))) return false;
    pending[++level] = is_map ? std::uint64_t{2} * count : count;
  }
}

}  // namespace allowd::protocol
