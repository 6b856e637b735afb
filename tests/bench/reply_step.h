// SPDX-License-Identifier: MIT
//
// What a reply skipper (msgpack_skipper.h, resp_skipper.h) says about the bytes it was shown.

#pragma once

#include <cstddef>

namespace allowd::bench {

struct ReplyStep {
  std::size_t consumed;  // bytes that belong to the current reply
  bool complete;         // the reply ends with them; if not, all bytes are consumed and more are needed
};

}  // namespace allowd::bench
