// SPDX-License-Identifier: MIT
//
// The client's half of the wire: requests as bytes, bytes as replies.
//
// Ownership  What is read borrows from the bytes it was read from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "protocol/byte_buffer.h"
#include "protocol/cursor.h"

namespace allowd::protocol {

// What a client asks for: the name of a configured limit, or a definition of its own when `rate` is set.
struct LimitArgument {
  std::string_view name;
  std::string_view rate;  // "100/s"; empty: `name` is configured in the agent
  std::optional<std::uint64_t> burst;
};

struct QueryArgument {
  std::string_view method;  // "allow", "peek" or "refund"
  LimitArgument limit;
  std::string_view key;
  std::uint64_t cost = 1;
  std::optional<std::uint64_t> deadline_us;  // sent with `allow` alone: the others have no options
};

// `allow_many`: each item as it would be asked for by itself.
struct ManyArgument {
  struct Item {
    LimitArgument limit;
    std::string_view key;
    std::uint64_t cost = 1;
  };
  std::span<const Item> items;
  std::string_view mode;  // "each" or "all"
  std::optional<std::uint64_t> deadline_us;
};

void write_query(ByteBuffer& out, std::uint32_t msgid, const QueryArgument& query);
void write_many(ByteBuffer& out, std::uint32_t msgid, const ManyArgument& many);
void write_plain_request(ByteBuffer& out, std::uint32_t msgid, std::string_view method);

// A decision as received. Names that this client does not know stay what they are.
struct ReceivedDecision {
  bool allowed = false;
  std::uint64_t limit = 0;
  std::uint64_t remaining = 0;
  std::int64_t retry_after_us = 0;
  std::uint64_t reset_after_us = 0;
  std::string_view verdict;
  std::string_view source;
  std::string_view tier;
  std::uint64_t window_us = 0;
  std::uint64_t more_after_us = 0;
};

struct Reply {
  enum class Kind : std::uint8_t { reply, incomplete, violation };
  Kind kind = Kind::incomplete;
  std::size_t size = 0;
  std::uint64_t msgid = 0;
  std::string_view error;             // "code: text"; empty: there is a result
  std::span<const std::byte> result;  // one encoded value
};

// Reads the first reply of `bytes`; longer than `cap` bytes is a violation.
[[nodiscard]] Reply read_reply(std::span<const std::byte> bytes, std::size_t cap);

// Elements that a later agent adds behind those we know are passed over.
[[nodiscard]] bool read_decision(Cursor& cursor, ReceivedDecision& decision);

}  // namespace allowd::protocol
