// SPDX-License-Identifier: MIT
//
// Walks over MessagePack values in a byte range, one at a time, without copying or allocating.
//
// Every read either succeeds and moves past the value, or fails and says why: the bytes end too early (more
// may still arrive), or the value is not what was asked for. After a failure the position is unspecified.
//
// msgpack-c's visitor is the oracle that the tests hold this against; it costs an allocation per message and
// cannot tell "incomplete" from "wrong", which a stream parser must.
//
// Ownership  Views point into the range.
// Errors     `failure()`; nothing throws. No read looks outside the range, whatever a length claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace allowd::protocol {

class Cursor {
 public:
  enum class Failure : std::uint8_t { none, starved, unexpected };

  explicit Cursor(std::span<const std::byte> bytes)
      : at_(reinterpret_cast<const std::uint8_t*>(bytes.data())), end_(at_ + bytes.size()) {}

  [[nodiscard]] Failure failure() const { return failure_; }
  [[nodiscard]] const std::byte* position() const { return reinterpret_cast<const std::byte*>(at_); }
  [[nodiscard]] bool at_end() const { return at_ == end_; }

  // An array's or map's header; `count` is its number of items or pairs.
  [[nodiscard]] bool read_array(std::uint32_t& count) {
    if (at_ == end_ || (*at_ & 0xf0) != 0x90) return read_long_array(count);
    count = *at_++ & 0x0f;
    return true;
  }
  [[nodiscard]] bool read_map(std::uint32_t& count);

  // Any integer encoding. A value above INT64_MAX reads as INT64_MAX.
  [[nodiscard]] bool read_integer(std::int64_t& value) {
    if (at_ == end_ || *at_ > 0x7f) return read_long_integer(value);
    value = *at_++;
    return true;
  }
  // Any integer encoding; a negative one reads as its two's complement.
  [[nodiscard]] bool read_unsigned(std::uint64_t& value);
  // str or bin alike.
  [[nodiscard, gnu::always_inline]] bool read_text(std::string_view& text) {
    if (at_ == end_ || (*at_ & 0xe0) != 0xa0) return read_long_text(text);
    const std::size_t size = *at_ & 0x1f;
    if (left() <= size) return fail(Failure::starved);
    text = {reinterpret_cast<const char*>(at_ + 1), size};
    at_ += 1 + size;
    return true;
  }
  [[nodiscard]] bool read_bool(bool& value);
  // Moves past a nil and returns true, else stays. Starved counts as "not nil".
  [[nodiscard]] bool take_nil();
  // What the next value is, without moving.
  [[nodiscard]] bool next_is_map() const;

  // Moves past one value of any kind. Containers may nest `depth` levels deep; a deeper one is `unexpected`.
  [[nodiscard]] bool skip(std::size_t depth);

 private:
  [[nodiscard]] bool fail(Failure failure) {
    failure_ = failure;
    return false;
  }
  [[nodiscard]] std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  // The encodings that are rare on the hot path.
  [[nodiscard]] bool read_long_array(std::uint32_t& count);
  [[nodiscard]] bool read_long_integer(std::int64_t& value);
  [[nodiscard]] bool read_long_text(std::string_view& text);
  // Reads the big-endian number of `width` bytes that follows the tag byte.
  [[nodiscard]] bool read_tail(std::size_t width, std::uint64_t& value);
  [[nodiscard]] bool take_bytes(std::uint64_t count, std::string_view& bytes);
  [[nodiscard]] bool skip_scalar(std::uint8_t tag);

  const std::uint8_t* at_;
  const std::uint8_t* end_;
  Failure failure_ = Failure::none;
};

}  // namespace allowd::protocol
