// SPDX-License-Identifier: MIT
//
// Redis's replies as tests write them down.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "agent/store/redis/codec/resp.h"

namespace allowd::testing {

// The one reply that these bytes are.
inline store::Reply parsed(const std::string& bytes) {
  store::ReplyReader reader;
  REQUIRE_FALSE(reader.feed(bytes));
  auto reply = reader.read();
  REQUIRE(reply);
  REQUIRE(*reply != nullptr);
  return std::move(*reply);
}

// An array of integers.
inline std::string integers(const std::vector<std::int64_t>& numbers) {
  std::string bytes = "*" + std::to_string(numbers.size()) + "\r\n";
  for (const std::int64_t number : numbers) bytes += ":" + std::to_string(number) + "\r\n";
  return bytes;
}

}  // namespace allowd::testing
