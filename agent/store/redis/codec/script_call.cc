// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/script_call.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cassert>

#include "agent/store/redis/codec/bucket_call.h"
#include "agent/store/redis/codec/counter_call.h"
#include "agent/store/redis/codec/log_call.h"
#include "agent/store/redis/codec/tier_call.h"

namespace allowd::store {

using limiter::Operation;

std::string_view letter_of(Operation operation) {
  switch (operation) {
    case Operation::take: return "t";
    case Operation::peek: return "p";
    case Operation::refund: return "r";
    case Operation::force: return "f";
  }
  return "p";
}

void append_redis_key(std::string& out, std::string_view prefix, std::string_view limit_tag,
                      std::string_view key) {
  // Unkeyed: every agent must find the same slot.
  constexpr std::string_view kDigits = "0123456789abcdef";
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  XXH64_update(&state, limit_tag.data(), limit_tag.size());
  XXH64_update(&state, key.data(), key.size());
  const std::uint64_t digest = XXH64_digest(&state);
  out.append(prefix).append(":{");
  for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[digest >> shift & 0xf];
  out.append("}:").append(limit_tag).append(key);
}

std::unique_ptr<ScriptCall> ScriptCall::make(limiter::Definition::Shape shape) {
  using Shape = limiter::Definition::Shape;
  switch (shape) {
    case Shape::bucket: return std::make_unique<BucketCall>();
    case Shape::tiers: return std::make_unique<TierCall>();
    case Shape::log: return std::make_unique<LogCall>();
    case Shape::counter: return std::make_unique<CounterCall>();
  }
  return nullptr;
}

std::uint16_t ScriptCall::index_of(const limiter::Definition& definition) {
  // The newest first: neighbours mostly ask about the same limit.
  for (std::size_t i = definitions_.size(); i > 0; --i) {
    if (definitions_[i - 1].get() == &definition) return static_cast<std::uint16_t>(i - 1);
  }
  definitions_.push_back(definition.shared_from_this());
  return static_cast<std::uint16_t>(definitions_.size() - 1);
}

void ScriptCall::add(Operation operation, const limiter::Definition& definition, std::string_view redis_key,
                     std::int64_t cost, std::uint64_t ticket, std::uint32_t times) {
  append(definition, redis_key, {operation, 0, cost, ticket, 0, 0, times});
}

void ScriptCall::add_again(const ScriptCall& other, const Item& item) {
  append(other.definition(item), other.redis_key(item), item);
}

void ScriptCall::append(const limiter::Definition& definition, std::string_view redis_key, Item item) {
  assert(!is_full());
  item.definition_index = index_of(definition);
  write_bulk(keys_, redis_key);
  constexpr std::size_t kLineEnd = 2;
  item.key_offset = static_cast<std::uint32_t>(keys_.size() - redis_key.size() - kLineEnd);
  item.key_size = static_cast<std::uint32_t>(redis_key.size());
  items_.push_back(item);
  weight_ += weight_of(definition, item.times);
  on_added(items_.back());
}

void ScriptCall::write(ByteBuffer& out, std::string_view sha, limiter::TimePoint now, bool by_server_time) {
  asked_at_ = now;
  by_server_time_ = by_server_time;
  constexpr std::size_t kFixedParts = 5;  // EVALSHA, sha, numkeys, kind, now
  write_command_header(out, kFixedParts + items_.size() + argument_count());
  write_bulk(out, "EVALSHA");
  write_bulk(out, sha);
  write_bulk(out, static_cast<std::int64_t>(items_.size()));
  out.append(keys_.view());
  const char letter = kind();
  write_bulk(out, std::string_view(&letter, 1));
  if (by_server_time_) {
    write_bulk(out, kServerTime);
  } else {
    write_bulk(out, std::int64_t{now.time_since_epoch().count()});
  }
  write_arguments(out);
}

bool ScriptCall::fits(const redisReply& reply) const {
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != reply_size() + (by_server_time_ ? 2 : 1))
    return false;
  constexpr std::int64_t kLatest = std::int64_t{1} << 53;
  const auto is_time = [](std::int64_t number) { return number >= 0 && number <= kLatest; };
  if (by_server_time_ && !is_time(reply.element[reply.elements - 2]->integer)) return false;
  return std::all_of(reply.element, reply.element + reply.elements,
                     [](const redisReply* element) { return element->type == REDIS_REPLY_INTEGER; });
}

void ScriptCall::take_time(const redisReply& reply) {
  if (by_server_time_)
    asked_at_ = limiter::TimePoint{limiter::Micros{reply.element[reply.elements - 2]->integer}};
}

std::uint64_t ScriptCall::healed(const redisReply& reply) {
  return static_cast<std::uint64_t>(std::max(0LL, reply.element[reply.elements - 1]->integer));
}

}  // namespace allowd::store
