// SPDX-License-Identifier: MIT
//
// Turns the bytes that a client sent into requests.
//
// Incremental: hand in all bytes not yet consumed, take one message off their front, repeat.
//
// Ownership  A Request borrows from the bytes; use it before they change. Nothing is copied or allocated.
// Errors     A request that can be named (its msgid is known) but not served carries `Refusal`; a stream that
//            has lost its framing is `violation`, and its connection has to be closed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace allowd::protocol {

enum class Method : std::uint8_t { allow, allow_many, peek, refund, ping, info, stats, other };

enum class ErrorCode : std::uint8_t {
  bad_request,
  unknown_method,
  unknown_limit,
  too_large,
  overloaded,
  forbidden,
  shutting_down,
  internal,
};

[[nodiscard]] std::string_view name_of(ErrorCode code);

// One rate of a limit that the application brings along. What was not sent is empty.
struct InlineTier {
  std::string_view name;
  std::string_view rate;
  std::string_view algorithm;
  std::string_view align;
  std::optional<std::int64_t> burst;  // permits
};

// A limit that the application brings along: `{"name": ..., "rate": ..., "burst": ...}`, or with `tiers`.
struct InlineLimit {
  static constexpr std::size_t kMaxTiers = 8;

  std::string_view name;
  std::string_view encoded;  // the whole map as it came: the same bytes mean the same limit
  std::array<InlineTier, kMaxTiers> tiers{};
  std::size_t tier_count = 1;  // without `tiers` there is one, without a name
};

struct Query {
  std::string_view limit;                     // a configured name, unless `defined_inline`
  std::optional<InlineLimit> defined_inline;  // the limit's own definition
  std::string_view key;
  std::int64_t cost = 1;                    // never negative
  std::optional<std::int64_t> deadline_us;  // from when the agent reads the query; never negative
  std::string_view plan;                    // "" for none
  bool is_forced = false;                   // charge even past the limit
};

struct Refusal {
  ErrorCode code;
  std::string_view reason;  // static text
};

struct Request {
  std::uint64_t msgid = 0;  // echoed, never checked
  Method method = Method::other;
  Query query;                     // of `allow`, `peek` and `refund`
  std::vector<Query> items;        // of `allow_many`; its options stand in each
  bool all_or_none = false;        // of `allow_many`
  std::optional<Refusal> refusal;  // answer this instead of serving the request
};

struct Message {
  enum class Kind : std::uint8_t {
    request,       // `request` is filled
    notification,  // to be counted and ignored
    incomplete,    // nothing consumed: come back with more bytes
    violation,     // not MessagePack-RPC: close the connection
  };
  Kind kind = Kind::incomplete;
  std::size_t size = 0;       // bytes that the message takes
  bool ends_stream = false;   // its end is unknown: answer the refusal, then close
  bool is_usual = false;      // a request for `allow` that names a limit, a key and at most a cost
  bool is_repeated = false;   // usual, and but for its msgid the same as the usual one in front of it
  std::size_t tail_size = 0;  // of a usual one: how many of its bytes are behind the msgid
  Request request;
};

// Reads the first message of `bytes`.
[[nodiscard]] Message read_message(std::span<const std::byte> bytes);
// The same into a new message, or the one that was read from directly in front of `bytes`, unchanged:
// clearing a whole Message costs as much as reading one, and one that repeats the other need not be read
// again.
void read_message(std::span<const std::byte> bytes, Message& message);

}  // namespace allowd::protocol
