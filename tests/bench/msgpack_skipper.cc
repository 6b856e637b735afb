// SPDX-License-Identifier: MIT

#include "msgpack_skipper.h"

#include <algorithm>
#include <cstring>

#include "endpoint.h"

namespace allowd::bench {
namespace {

constexpr std::uint64_t kMaxMessageBytes = 1024 * 1024;

// Into the head.
constexpr std::size_t kErrorOffset = 7;
constexpr std::size_t kAllowedOffset = 9;  // behind the first byte of the decision's array

enum class Counts : std::uint8_t { bytes, items, pairs, nothing_known };

// How a value goes on after its first byte.
struct Shape {
  std::uint8_t length_bytes = 0;  // size of a big-endian length that follows
  Counts counts = Counts::bytes;  // what that length counts
  std::uint8_t extra = 0;         // payload bytes beside it, or all of them without a length
  std::uint8_t items = 0;         // values inside, without a length
};

constexpr std::array<Shape, 256> make_shapes() {
  std::array<Shape, 256> shapes{};  // fixints, nil and booleans: the first byte is all
  for (std::size_t n = 0; n < 16; ++n) {
    shapes[0x80 + n].items = static_cast<std::uint8_t>(2 * n);  // fixmap
    shapes[0x90 + n].items = static_cast<std::uint8_t>(n);      // fixarray
  }
  for (std::size_t n = 0; n < 32; ++n) {
    shapes[0xa0 + n].extra = static_cast<std::uint8_t>(n);  // fixstr
  }
  shapes[0xc1].counts = Counts::nothing_known;
  for (std::size_t n = 0; n < 3; ++n) {
    const auto width = static_cast<std::uint8_t>(1U << n);
    shapes[0xc4 + n].length_bytes = width;  // bin
    shapes[0xc7 + n] = {
        .length_bytes = width, .counts = Counts::bytes, .extra = 1, .items = 0};  // ext + type
    shapes[0xd9 + n].length_bytes = width;                                        // str
  }
  shapes[0xca].extra = 4;  // float
  shapes[0xcb].extra = 8;
  for (std::size_t n = 0; n < 4; ++n) {
    shapes[0xcc + n].extra = static_cast<std::uint8_t>(1U << n);  // uint
    shapes[0xd0 + n].extra = static_cast<std::uint8_t>(1U << n);  // int
  }
  for (std::size_t n = 0; n < 5; ++n) {
    shapes[0xd4 + n].extra = static_cast<std::uint8_t>(1 + (1U << n));  // fixext: type and data
  }
  shapes[0xdc] = {.length_bytes = 2, .counts = Counts::items, .extra = 0, .items = 0};
  shapes[0xdd] = {.length_bytes = 4, .counts = Counts::items, .extra = 0, .items = 0};
  shapes[0xde] = {.length_bytes = 2, .counts = Counts::pairs, .extra = 0, .items = 0};
  shapes[0xdf] = {.length_bytes = 4, .counts = Counts::pairs, .extra = 0, .items = 0};
  return shapes;
}

constexpr std::array<Shape, 256> kShapes = make_shapes();

}  // namespace

ReplyStep MsgpackSkipper::advance(std::span<const std::byte> input) {
  Place at = place_;  // in registers; written back once
  const std::byte* byte = input.data();
  const std::byte* const end = byte + input.size();
  bool complete = false;
  while (true) {
    if (at.skip_left > 0) {
      const auto skipped = std::min<std::uint64_t>(at.skip_left, static_cast<std::uint64_t>(end - byte));
      byte += skipped;
      at.skip_left -= skipped;
    }
    if (at.skip_left == 0 && at.length_left == 0 && at.items_left == 0) {
      complete = true;
      break;
    }
    if (byte == end) {
      break;
    }
    if (at.length_left == 0) {  // a new value
      at.lead = static_cast<std::uint8_t>(*byte++);
      const Shape& shape = kShapes[at.lead];
      --at.items_left;
      at.length_left = shape.length_bytes;
      at.length = 0;
      if (shape.length_bytes == 0) {
        at.items_left += shape.items;
        at.skip_left = shape.extra;
      }
      if (shape.counts == Counts::nothing_known) {
        throw PeerError("the peer sent something that is not MessagePack");
      }
      continue;
    }
    at.length = (at.length << 8) | static_cast<std::uint8_t>(*byte++);
    if (--at.length_left == 0) {
      const Shape& shape = kShapes[at.lead];
      at.items_left += shape.counts == Counts::items ? at.length : 0;
      at.items_left += shape.counts == Counts::pairs ? 2 * at.length : 0;
      at.skip_left = shape.extra + (shape.counts == Counts::bytes ? at.length : 0);
    }
  }
  const auto consumed = static_cast<std::size_t>(byte - input.data());
  message_bytes_ += consumed;
  // Every value is at least a byte, so what is known to come counts too: a length alone cannot hold us up.
  if (message_bytes_ + at.items_left + at.skip_left > kMaxMessageBytes) {
    throw PeerError("the peer sent a message of more than 1 MiB");
  }
  keep_head(input.first(consumed));
  place_ = complete ? Place{} : at;
  message_bytes_ = complete ? 0 : message_bytes_;
  return {consumed, complete};
}

void MsgpackSkipper::keep_head(std::span<const std::byte> bytes) noexcept {
  const bool begins = message_bytes_ == bytes.size();
  if (begins && bytes.size() >= head_.size()) {  // nearly always
    std::memcpy(head_.data(), bytes.data(), head_.size());
    head_size_ = head_.size();
  } else {
    head_size_ = begins ? 0 : head_size_;
    const auto wanted = bytes.first(std::min(head_.size() - head_size_, bytes.size()));
    std::copy(wanted.begin(), wanted.end(), head_.begin() + static_cast<std::ptrdiff_t>(head_size_));
    head_size_ += wanted.size();
  }
}

std::uint32_t MsgpackSkipper::slot() const noexcept {
  std::uint32_t msgid = 0;
  for (std::size_t n = 0; n < sizeof msgid; ++n) {
    msgid = (msgid << 8) | static_cast<std::uint32_t>(head_[kMsgidOffset + n]);
  }
  const bool is_ours =
      head_size_ > kErrorOffset && head_[0] == std::byte{0x94} && head_[2] == std::byte{0xce};
  return is_ours ? msgid - kMsgidBase : UINT32_MAX;
}

bool MsgpackSkipper::is_error() const noexcept {
  return head_[1] == std::byte{0x01} && head_[kErrorOffset] != std::byte{0xc0};
}

bool MsgpackSkipper::is_allowed() const noexcept {
  return head_size_ > kAllowedOffset && head_[kErrorOffset] == std::byte{0xc0} &&
         head_[kAllowedOffset] == std::byte{0xc3};
}

}  // namespace allowd::bench
