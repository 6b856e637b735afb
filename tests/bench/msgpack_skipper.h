// SPDX-License-Identifier: MIT
//
// Finds where one MessagePack-RPC message ends, without decoding it, and may be interrupted at any byte.
//
// The load generator must do the same small work for an echoed request and for a decision, so it looks only
// at the shape, and at a head that has the same place in both: `94 <type> ce <msgid, 4 bytes> <error or
// method>`; in a decision then `<array> <allowed>`.
//
// Units    Bytes. A message over 1 MiB is refused.
// Errors   advance() throws PeerError on the one byte MessagePack never uses and on a message that is too
// long.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "reply_step.h"

namespace allowd::bench {

class MsgpackSkipper {
 public:
  // Message ids are this plus a slot number: always 4 bytes in the minimal encoding, so always in the same
  // place.
  static constexpr std::uint32_t kMsgidBase = 0x4000'0000;
  static constexpr std::size_t kMsgidOffset = 3;

  // Goes on to the end of the current message, or of `input`. After a complete one the next begins by itself.
  ReplyStep advance(std::span<const std::byte> input);

  // Whether a message has begun and not ended.
  [[nodiscard]] bool is_inside() const noexcept { return message_bytes_ > 0; }

  // About the message that advance() just completed: the slot of the request it answers (a huge number if its
  // head is not that of an answer to us), whether it carries an RPC error, and whether it is a decision that
  // lets the query pass. An echoed request is neither.
  [[nodiscard]] std::uint32_t slot() const noexcept;
  [[nodiscard]] bool is_error() const noexcept;
  [[nodiscard]] bool is_allowed() const noexcept;

 private:
  struct Place {
    std::uint64_t items_left = 1;  // values not begun yet, at all depths together
    std::uint64_t skip_left = 0;   // bytes of the current value's payload
    std::uint64_t length = 0;      // the length that is being read ...
    std::uint8_t length_left = 0;  // ... of which so many bytes are to come
    std::uint8_t lead = 0;         // first byte of the value that it belongs to
  };

  void keep_head(std::span<const std::byte> bytes) noexcept;

  Place place_;
  std::uint64_t message_bytes_ = 0;
  std::array<std::byte, 10> head_{};
  std::size_t head_size_ = 0;
};

}  // namespace allowd::bench
