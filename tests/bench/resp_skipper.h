// SPDX-License-Identifier: MIT
//
// Finds where one Redis (RESP2) reply ends, and may be interrupted at any byte.
//
// Units    Bytes. A reply of more than 1 MiB is refused.
// Errors   advance() throws PeerError on bytes that are not RESP2. An error *reply* is an answer: is_error().

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "reply_step.h"

namespace allowd::bench {

class RespSkipper {
 public:
  // Goes on to the end of the current reply, or of `input`. After a complete one the next begins by itself.
  ReplyStep advance(std::span<const std::byte> input);

  // Whether a reply has begun and not ended.
  [[nodiscard]] bool is_inside() const noexcept { return reply_bytes_ > 0; }

  // Redis answers in order, and the baseline never has more than one request in flight on a connection.
  [[nodiscard]] std::uint32_t slot() const noexcept { return 0; }
  // Whether the reply that advance() just completed is an error.
  [[nodiscard]] bool is_error() const noexcept { return is_error_; }
  // Whether it is an array that begins with the integer 1, as the script's answer to a query that may pass.
  [[nodiscard]] bool is_allowed() const noexcept { return is_allowed_; }

 private:
  void begin_value(char lead);
  void take_digit(char digit);
  void end_line();

  std::int64_t items_left_ = 1;  // values not begun yet, at all depths together
  std::int64_t skip_left_ = 0;   // bytes of the current bulk string and its line end
  std::int64_t number_ = 0;      // the length that is being read
  bool is_negative_ = false;
  bool in_line_ = false;  // between a value's first byte and its line end
  char lead_ = '\0';
  bool is_error_ = false;
  std::uint32_t values_begun_ = 0;  // of this reply
  bool is_allowed_ = false;
  std::int64_t reply_bytes_ = 0;
};

}  // namespace allowd::bench
