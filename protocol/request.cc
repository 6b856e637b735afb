// SPDX-License-Identifier: MIT
#include "protocol/request.h"

#include <array>
#include <cstring>
#include <utility>

#include "protocol/caps.h"
#include "protocol/cursor.h"

namespace allowd::protocol {
namespace {

constexpr std::int64_t kRequest = 0, kNotification = 2;

Method method_of(std::string_view name) {
  if (name == "allow") return Method::allow;
  if (name == "peek") return Method::peek;
  if (name == "allow_many") return Method::allow_many;
  if (name == "refund") return Method::refund;
  if (name == "ping") return Method::ping;
  if (name == "info") return Method::info;
  if (name == "stats") return Method::stats;
  return Method::other;
}

// A Refusal that fits into two registers; without a reason there is none.
struct Problem {
  const char* reason = nullptr;
  ErrorCode code = ErrorCode::bad_request;

  explicit operator bool() const { return reason != nullptr; }
};

// Reads what stands inside a request whose end is already known, so that running out of bytes means that its
// own counts lie. Each reader returns nothing when all is well.
class ParamReader {
 public:
  explicit ParamReader(Cursor& cursor) : cursor_(cursor) {}

  Problem read_params(Request& request) {
    const Method method = request.method;
    std::uint32_t count = 0;
    if (!cursor_.read_array(count)) return bad("params must be an array");
    if (method == Method::allow_many) return read_many(count, request);
    Query& query = request.query;
    if (method != Method::allow && method != Method::peek && method != Method::refund) {
      return count == 0 ? Problem{} : bad("this method takes no params");
    }
    const std::uint32_t most = method == Method::allow ? 4 : 3;
    if (count < 2 || count > most) {
      return method == Method::allow ? bad("params must be [limit, key, cost, options]")
                                     : bad("params must be [limit, key, cost]");
    }
    if (auto problem = read_subject(count, query)) return problem;
    return count == 4 ? read_options(query) : Problem{};
  }

 private:
  // Limit, key and, of three and more, cost.
  Problem read_subject(std::uint32_t count, Query& query) {
    if (auto problem = read_limit(query)) return problem;
    if (!cursor_.read_text(query.key)) return bad("key must be a string");
    if (query.key.size() > kMaxKeyBytes) return {"key is over 1024 bytes", ErrorCode::too_large};
    return count >= 3 ? read_cost(query.cost) : Problem{};
  }

  Problem read_many(std::uint32_t count, Request& request) {
    if (count < 1 || count > 3) return bad("params must be [[[limit, key, cost], ...], mode, options]");
    std::uint32_t items = 0;
    if (!cursor_.read_array(items)) return bad("the items must be an array");
    if (items > kMaxItems) return {"there are over 256 items", ErrorCode::too_large};
    request.items.clear();
    for (std::uint32_t i = 0; i < items; ++i) {
      std::uint32_t fields = 0;
      if (!cursor_.read_array(fields) || fields < 2 || fields > 3)
        return bad("an item must be [limit, key, cost]");
      if (auto problem = read_subject(fields, request.items.emplace_back())) return problem;
    }
    request.all_or_none = false;
    if (count >= 2 && !cursor_.take_nil()) {
      std::string_view mode;
      if (!cursor_.read_text(mode) || (mode != "each" && mode != "all"))
        return bad("mode must be \"each\" or \"all\"");
      request.all_or_none = mode == "all";
    }
    Query options;
    if (count == 3) {
      if (auto problem = read_options(options)) return problem;
    }
    for (Query& item : request.items) {
      item.deadline_us = options.deadline_us;
      item.plan = options.plan;
      item.is_forced = options.is_forced;
    }
    return {};
  }

  static Problem bad(const char* reason) { return {reason, ErrorCode::bad_request}; }

  Problem read_limit(Query& query) {
    if (cursor_.next_is_map()) return read_inline(query.defined_inline.emplace());
    if (!cursor_.read_text(query.limit)) return bad("limit must be a name or a table");
    if (query.limit.size() > kMaxLimitNameBytes) return bad("limit name is over 128 bytes");
    return {};
  }

  Problem read_inline(InlineLimit& limit) {
    const std::byte* start = cursor_.position();
    std::uint32_t pairs = 0;
    if (!cursor_.read_map(pairs)) return bad("limit must be a name or a table");
    std::uint32_t tiers = 0;
    InlineTier& only = limit.tiers[0];
    for (std::uint32_t i = 0; i < pairs; ++i) {
      std::string_view field;
      if (!cursor_.read_text(field)) return bad("a limit table's keys must be strings");
      if (field == "name" && limit.name.empty()) {
        if (!cursor_.read_text(limit.name)) return bad("limit.name must be a string");
      } else if (field == "tiers" && tiers == 0) {
        if (auto problem = read_tiers(limit, tiers)) return problem;
      } else if (auto problem = read_rate(field, only)) {
        return problem;
      }
    }
    if (limit.name.empty()) return bad("a limit table needs a name");
    if (limit.name.size() > kMaxLimitNameBytes) return bad("limit name is over 128 bytes");
    if (tiers == 0 && only.rate.empty()) return bad("a limit table needs a rate, or tiers");
    if (tiers > 0 && pairs > 2) return bad("rate and burst cannot stand beside tiers");
    limit.encoded = {reinterpret_cast<const char*>(start),
                     static_cast<std::size_t>(cursor_.position() - start)};
    return {};
  }

  Problem read_tiers(InlineLimit& limit, std::uint32_t& count) {
    if (!limit.tiers[0].rate.empty()) return bad("rate cannot stand beside tiers");
    if (!cursor_.read_array(count) || count == 0) return bad("limit.tiers must be an array of tables");
    if (count > InlineLimit::kMaxTiers) return bad("a limit has at most 8 tiers");
    for (std::uint32_t i = 0; i < count; ++i) {
      InlineTier& tier = limit.tiers[i];
      tier = {};
      std::uint32_t pairs = 0;
      if (!cursor_.read_map(pairs)) return bad("limit.tiers must be an array of tables");
      for (std::uint32_t j = 0; j < pairs; ++j) {
        std::string_view field;
        if (!cursor_.read_text(field)) return bad("a tier's keys must be strings");
        if (field == "name" && tier.name.empty()) {
          if (!cursor_.read_text(tier.name)) return bad("a tier's name must be a string");
        } else if (auto problem = read_rate(field, tier)) {
          return problem;
        }
      }
      if (tier.name.empty() || tier.name.size() > kMaxLimitNameBytes)
        return bad("a tier's name has 1 to 128 bytes");
      if (tier.rate.empty()) return bad("a tier needs a rate");
    }
    limit.tier_count = count;
    return {};
  }

  // A field that a limit and a tier have alike.
  Problem read_rate(std::string_view field, InlineTier& tier) {
    if (field == "rate" && tier.rate.empty()) {
      return cursor_.read_text(tier.rate) ? Problem{} : bad("limit.rate must be a string like \"100/s\"");
    }
    if (field == "algorithm" && tier.algorithm.empty()) {
      return cursor_.read_text(tier.algorithm) ? Problem{} : bad("limit.algorithm must be a string");
    }
    if (field == "align" && tier.align.empty()) {
      return cursor_.read_text(tier.align) ? Problem{} : bad("limit.align must be a string");
    }
    if (field == "burst" && !tier.burst) {
      if (cursor_.take_nil()) return {};
      return cursor_.read_integer(tier.burst.emplace()) ? Problem{} : bad("limit.burst must be an integer");
    }
    return bad("a limit table takes name, rate, burst, algorithm, align and tiers, each once");
  }

  Problem read_cost(std::int64_t& cost) {
    if (cursor_.take_nil()) return {};
    if (!cursor_.read_integer(cost)) return bad("cost must be an integer");
    return cost < 0 ? bad("cost is negative") : Problem{};
  }

  Problem read_options(Query& query) {
    if (cursor_.take_nil()) return {};
    std::uint32_t pairs = 0;
    if (!cursor_.read_map(pairs)) return bad("options must be a table");
    bool has_deadline = false, has_plan = false, has_force = false;
    for (std::uint32_t i = 0; i < pairs; ++i) {
      std::string_view option;
      if (!cursor_.read_text(option)) return bad("an option's name must be a string");
      if (option == "deadline_us") {
        if (std::exchange(has_deadline, true)) return bad("deadline_us stands twice");
        if (cursor_.take_nil()) continue;
        if (!cursor_.read_integer(query.deadline_us.emplace())) return bad("deadline_us must be an integer");
        if (*query.deadline_us < 0) return bad("deadline_us is negative");
      } else if (option == "plan") {
        if (std::exchange(has_plan, true)) return bad("plan stands twice");
        if (cursor_.take_nil()) continue;
        if (!cursor_.read_text(query.plan)) return bad("plan must be a string");
      } else if (option == "force") {
        if (std::exchange(has_force, true)) return bad("force stands twice");
        if (cursor_.take_nil()) continue;
        if (!cursor_.read_bool(query.is_forced)) return bad("force must be true or false");
      } else {
        return bad("unknown option");
      }
    }
    return {};
  }

  Cursor& cursor_;
};

std::size_t distance(std::span<const std::byte> bytes, const std::byte* position) {
  return static_cast<std::size_t>(position - bytes.data());
}

// A query as it is before anything was read of it.
void clear(Query& query) {
  query.defined_inline.reset();
  query.deadline_us.reset();
  query.cost = 1;
  query.plan = {};
  query.is_forced = false;
}

// Reads the short encodings, and knows no others: never out of line, so that all it holds stays in registers.
class ShortReader {
 public:
  explicit ShortReader(std::span<const std::byte> bytes)
      : at_(reinterpret_cast<const std::uint8_t*>(bytes.data())), end_(at_ + bytes.size()) {}

  [[nodiscard]] const std::byte* position() const { return reinterpret_cast<const std::byte*>(at_); }
  [[nodiscard]] std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  // The first three look at bytes that the caller knows to be there.

  // Moves past these very bytes.
  template <std::size_t kSize>
  [[nodiscard]] bool take(const char (&bytes)[kSize]) {
    constexpr std::size_t kCount = kSize - 1;  // without the literal's own end
    if (std::memcmp(at_, bytes, kCount) != 0) return false;
    at_ += kCount;
    return true;
  }
  [[nodiscard]] std::uint8_t take_byte() { return *at_++; }
  // Below 128 or in four bytes, as most clients count.
  [[nodiscard]] bool take_msgid(std::uint64_t& msgid) {
    if (*at_ < 0x80) {
      msgid = *at_++;
      return true;
    }
    if (*at_ != 0xce) return false;
    std::uint32_t wide = 0;
    std::memcpy(&wide, at_ + 1, sizeof wide);
    msgid = __builtin_bswap32(wide);
    at_ += 5;
    return true;
  }
  // Moves past a copy of these bytes, at least eight, if it is there. Who asks about another key shows that
  // at the end.
  [[nodiscard]] bool take_same(const std::byte* bytes, std::size_t count) {
    constexpr std::size_t kEnd = 8;
    if (left() < count || std::memcmp(bytes + count - kEnd, at_ + count - kEnd, kEnd) != 0) return false;
    if (std::memcmp(bytes, at_, count - kEnd) != 0) return false;
    at_ += count;
    return true;
  }
  // From 0 to 127.
  [[nodiscard]] bool take_small(std::int64_t& number) {
    if (left() < 1 || *at_ > 0x7f) return false;
    number = *at_++;
    return true;
  }
  // Up to 255 bytes; at least two more have to be there.
  [[nodiscard]] bool take_text(std::string_view& text) {
    if (left() < 2) return false;
    std::size_t size = std::size_t{*at_} - 0xa0;
    std::size_t head = 1;
    if (size > 0x1f) {
      if (*at_ != 0xd9) return false;
      size = at_[1];
      head = 2;
    }
    if (left() - head < size) return false;
    text = {reinterpret_cast<const char*>(at_ + head), size};
    at_ += head + size;
    return true;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

// The shape that nearly every message has, [0, msgid, "allow", [limit, key]] or with a cost behind, read in a
// straight line. False, also where bytes are missing: leave it to the readers of other shapes.
[[gnu::always_inline]] inline bool read_usual_request(std::span<const std::byte> bytes, Message& message) {
  ShortReader reader(bytes);
  std::uint64_t msgid = 0;
  std::string_view limit, key;
  std::int64_t cost = 1;
  constexpr std::size_t kLongestHead = 2 + 5 + 6 + 1;  // up to the params' own header
  if (reader.left() < kLongestHead) return false;
  if (!reader.take("\x94\x00") || !reader.take_msgid(msgid)) return false;
  message.is_repeated =
      message.is_usual && reader.take_same(bytes.data() - message.tail_size, message.tail_size);
  if (message.is_repeated) {
    message.size = distance(bytes, reader.position());
    Query& query = message.request.query;
    message.request.msgid = msgid;
    query.limit = {query.limit.data() + message.size, query.limit.size()};
    query.key = {query.key.data() + message.size, query.key.size()};
    return true;
  }
  const std::byte* const tail = reader.position();
  if (!reader.take("\245allow")) return false;
  const std::uint8_t params = reader.take_byte();
  const bool has_cost = params == 0x93;
  if (!has_cost && params != 0x92) return false;
  if (!reader.take_text(limit) || limit.size() > kMaxLimitNameBytes || !reader.take_text(key)) return false;
  if (has_cost && !reader.take_small(cost)) return false;
  Request& request = message.request;
  if (!message.is_usual) {
    clear(request.query);
    request.refusal.reset();
    request.method = Method::allow;
    message.kind = Message::Kind::request;
    message.ends_stream = false;
    message.is_usual = true;
  }
  request.msgid = msgid;
  request.query.limit = limit;
  request.query.key = key;
  request.query.cost = cost;
  message.size = distance(bytes, reader.position());
  message.tail_size = static_cast<std::size_t>(reader.position() - tail);
  return true;
}

// A well-formed request for a method that we have, read in one pass.
bool read_plain_request(std::span<const std::byte> bytes, Message& message) {
  Cursor cursor(bytes);
  std::uint32_t fields = 0;
  std::int64_t type = 0;
  std::string_view method;
  Request& request = message.request;
  request.refusal.reset();
  clear(request.query);
  if (!cursor.read_array(fields) || fields != 4) return false;
  if (!cursor.read_integer(type) || type != kRequest) return false;
  if (!cursor.read_unsigned(request.msgid) || !cursor.read_text(method)) return false;
  request.method = method_of(method);
  if (request.method == Method::other) return false;
  if (ParamReader(cursor).read_params(request)) return false;
  message.kind = Message::Kind::request;
  message.ends_stream = false;
  message.size = distance(bytes, cursor.position());
  return message.size <= kMaxRequestBytes;
}

// A request whose head was read but whose end cannot be found: refuse it by name, then give the stream up.
Message ends_with(std::uint64_t msgid, ErrorCode code, std::string_view reason) {
  Message message;
  message.kind = Message::Kind::request;
  message.ends_stream = true;
  message.request.msgid = msgid;
  message.request.refusal = Refusal{code, reason};
  return message;
}

// Everything else: finds the message's end first, then says what is wrong with it.
Message read_any_message(std::span<const std::byte> bytes) {
  const bool is_over_cap = bytes.size() > kMaxRequestBytes;
  const auto window = is_over_cap ? bytes.first(kMaxRequestBytes) : bytes;
  Message message;
  message.kind = Message::Kind::violation;

  Cursor head(window);
  std::uint32_t fields = 0;
  std::int64_t type = -1;
  std::uint64_t msgid = 0;
  // The head decides whether there is anybody to answer; while it may still be incomplete, wait for it.
  const bool has_type = head.read_array(fields) && fields >= 3 && head.read_integer(type);
  if (!has_type && head.failure() == Cursor::Failure::starved) return Message{};
  if (!has_type || (type != kRequest && type != kNotification)) return message;
  const bool has_msgid = type == kRequest && head.read_unsigned(msgid);
  if (type == kRequest && !has_msgid) {
    return head.failure() == Cursor::Failure::starved ? Message{} : message;
  }

  Cursor whole(window);
  if (!whole.skip(kMaxDepth)) {
    const bool is_starved = whole.failure() == Cursor::Failure::starved;
    if (is_starved && !is_over_cap) return Message{};
    if (!has_msgid) return message;
    return is_starved ? ends_with(msgid, ErrorCode::too_large, "request is over 8192 bytes")
                      : ends_with(msgid, ErrorCode::bad_request, "malformed, or nested more than 8 deep");
  }
  message.size = distance(window, whole.position());
  if (type == kNotification) {
    message.kind = fields == 3 ? Message::Kind::notification : Message::Kind::violation;
    return message;
  }

  message.kind = Message::Kind::request;
  message.request.msgid = msgid;
  auto& refusal = message.request.refusal;
  std::string_view method;
  if (fields != 4) {
    refusal = Refusal{ErrorCode::bad_request, "a request is [0, msgid, method, params]"};
  } else if (!head.read_text(method)) {
    refusal = Refusal{ErrorCode::bad_request, "method must be a string"};
  } else if (message.request.method = method_of(method); message.request.method == Method::other) {
    refusal = Refusal{ErrorCode::unknown_method, "no such method on this socket"};
  } else {
    const Problem problem = ParamReader(head).read_params(message.request);
    if (problem) refusal = Refusal{problem.code, problem.reason};
  }
  return message;
}

[[gnu::noinline]] void read_unusual_message(std::span<const std::byte> bytes, Message& message) {
  message.is_usual = message.is_repeated = false;
  if (!bytes.empty() && read_plain_request(bytes, message)) return;
  message = bytes.empty() ? Message{} : read_any_message(bytes);
}

}  // namespace

std::string_view name_of(ErrorCode code) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "bad_request", "unknown_method", "unknown_limit", "too_large",
      "overloaded",  "forbidden",      "shutting_down", "internal"};
  return kNames[static_cast<std::size_t>(code)];
}

void read_message(std::span<const std::byte> bytes, Message& message) {
  if (!read_usual_request(bytes, message)) read_unusual_message(bytes, message);
}

Message read_message(std::span<const std::byte> bytes) {
  Message message;
  read_message(bytes, message);
  return message;
}

}  // namespace allowd::protocol
