// SPDX-License-Identifier: MIT

#include "resp_skipper.h"

#include <algorithm>

#include "endpoint.h"

namespace allowd::bench {
namespace {

constexpr std::int64_t kMaxReplyBytes = 1024 * 1024;

}  // namespace

ReplyStep RespSkipper::advance(std::span<const std::byte> input) {
  std::size_t at = 0;
  bool complete = false;
  while (true) {
    const auto skipped = std::min(skip_left_, static_cast<std::int64_t>(input.size() - at));
    at += static_cast<std::size_t>(skipped);
    skip_left_ -= skipped;
    if (skip_left_ == 0 && !in_line_ && items_left_ == 0) {
      complete = true;
      break;
    }
    if (at == input.size()) {
      break;
    }
    const char byte = static_cast<char>(input[at++]);
    if (!in_line_) {
      begin_value(byte);
    } else if (byte == '\n') {
      end_line();
    } else {
      take_digit(byte);
    }
  }
  reply_bytes_ += static_cast<std::int64_t>(at);
  if (reply_bytes_ + items_left_ + skip_left_ > kMaxReplyBytes) {
    throw PeerError("the peer sent a reply of more than 1 MiB");
  }
  if (complete) {
    items_left_ = 1;
    reply_bytes_ = 0;
    values_begun_ = 0;
  }
  return {at, complete};
}

void RespSkipper::begin_value(char lead) {
  if (lead != '+' && lead != '-' && lead != ':' && lead != '$' && lead != '*') {
    throw PeerError("the peer sent something that is not RESP2");
  }
  if (values_begun_++ == 0) {
    is_error_ = lead == '-';
    is_allowed_ = false;
  }
  --items_left_;
  lead_ = lead;
  in_line_ = true;
  number_ = 0;
  is_negative_ = false;
}

void RespSkipper::take_digit(char digit) {
  if (lead_ != '$' && lead_ != '*') {  // a status, an error or an integer: the line is all of it
    if (lead_ == ':' && values_begun_ == 2 && digit != '\r') {
      is_allowed_ = digit == '1';
    }
    return;
  }
  if (digit == '-') {
    is_negative_ = true;
  } else if (digit >= '0' && digit <= '9') {
    number_ = std::min(number_ * 10 + (digit - '0'), 2 * kMaxReplyBytes);
  } else if (digit != '\r') {
    throw PeerError("the peer sent a length that is not a number");
  }
}

void RespSkipper::end_line() {
  in_line_ = false;
  if (is_negative_) {
    return;  // a null has no payload
  }
  if (lead_ == '$') {
    skip_left_ = number_ + 2;
  } else if (lead_ == '*') {
    items_left_ += number_;
  }
}

}  // namespace allowd::bench
