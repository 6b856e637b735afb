// SPDX-License-Identifier: MIT
#include "agent/store/redis/bucket_script.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cassert>

namespace allowd::store {
namespace {

using limiter::Operation;
using limiter::Verdict;

// In the reply: this key's value has a format number that the script does not know.
constexpr std::int64_t kUnknownFormat = -(std::int64_t{1} << 53);

// KEYS  one per question. One that occurs twice is decided in order.
// ARGV  now, "1" if a key occurs twice, number of limits, (unit, refill, full) of each,
//       then runs of (limit, operation, units, number of questions)
// Reply one number per question: used when it passed, -1 - used when not; then how many values were put
// right.
//
// Lua 5.1 and 5.4 alike: all numbers are integers below 2^53, TTLs are passed as text (Redis prints a number
// argument with %.17g, slowly), and nothing is printed with `..` or
// tostring.
constexpr std::string_view kScript = R"lua(
local unpack, pack, read = unpack or table.unpack, struct.pack, struct.unpack
local call, ceil, format, byte = redis.call, math.ceil, string.format, string.byte
local MOST, LATEST, UNKNOWN, FORMAT = 4503599627370496, 9007199254740992, -9007199254740992, 1
local LAYOUT = '<BI7I7I7I5'  -- format, unit, last, used, and the second of the clock at which it will be full
local now, repeats, limits = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local units, refills, fulls, at = {}, {}, {}, 3
for i = 1, limits do
  units[i], refills[i], fulls[i] = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  at = at + 3
end
local values, written, ttls, reply, healed, k = call('MGET', unpack(KEYS)), {}, {}, {}, 0, 0

-- 60 s beyond the reset, in whole seconds so that equal ones are printed once; at most 400 days
local function ttl_of(used, refill)
  local s = used / refill / 1000000
  local part = s % 1
  s = part > 0 and s - part + 61 or s + 60
  if s > 34560000 then s = 34560000 end
  local text = ttls[s]
  if not text then text = format('%.0f', s) ttls[s] = text end
  return text
end

local function convert(used, from, to)
  local rest = used % from
  local whole = (used - rest) / from
  rest = rest * to < 9007199254740992 and ceil(rest * to / from) or to
  used = whole * to + rest
  return used < MOST and used or MOST
end

while at < #ARGV do
  local limit, op, cost = tonumber(ARGV[at + 1]), ARGV[at + 2], tonumber(ARGV[at + 3])
  local unit, refill, full, last_of_run = units[limit], refills[limit], fulls[limit], k + tonumber(ARGV[at + 4])
  at = at + 4
  while k < last_of_run do
    k = k + 1
    local key, value, used, last = KEYS[k], values[k], 0, now
    if repeats then value = written[key] or value end
    local known, newer, full_at = false, false, nil
    if value then
      if #value == 27 then
        local number, u, l, s, second = read(LAYOUT, value)
        if number == FORMAT and u >= 1 and u <= MOST and s <= MOST and l <= LATEST then
          known, full_at = true, second
          if u ~= unit then s = convert(s, u, unit) end
          if l > now then last = l end
          local back = last - l
          if back < s / refill then used = s - back * refill end
        else
          newer = number > FORMAT and number < 32
        end
      else
        local number = byte(value, 1) or 0
        newer = number > FORMAT and number < 32
      end
    end
    if newer then
      reply[k] = UNKNOWN
    else
      local passes, after, writes = true, used, false
      if op == 't' then
        passes = used + cost <= full or cost == 0
        if passes then after = used + cost end
      elseif op == 'p' then
        passes = used + cost <= full or cost == 0
      elseif op == 'r' then
        -- written also when it is full already: what it stood at before has no say any more
        writes = known and cost > 0
        if writes then after = used > cost and used - cost or 0 end
      else
        after = used + cost < full and used + cost or full
        if after < used then after = used end
      end
      if writes or after ~= used then
        local second = (last + after / refill) / 1000000
        second = second - second % 1
        local text = pack(LAYOUT, FORMAT, unit, last, after, second)
        if second == full_at then
          call('SETRANGE', key, '0', text)  -- the cheapest write that there is: the TTL stays right
        elseif value then
          call('SETEX', key, ttl_of(after, refill), text)
          if not known then healed = healed + 1 end
        -- MGET shows a value of another type as none: NX finds it out at no cost
        elseif not call('SET', key, text, 'EX', ttl_of(after, refill), 'NX') then
          call('SETEX', key, ttl_of(after, refill), text)
          healed = healed + 1
        end
        if repeats then written[key] = text end
      elseif known and not passes then
        -- a refusal leaves the value alone, but sees to it that it lives as long as the use it counts
        local left = call('PTTL', key)
        if left < used / refill / 1000 then
          call('EXPIRE', key, ttl_of(used, refill))
          if left == -1 then healed = healed + 1 end
        end
      end
      reply[k] = passes and after or -1 - used
    end
  end
end
reply[k + 1] = healed
return reply
)lua";

char letter_of(Operation operation) {
  switch (operation) {
    case Operation::take: return 't';
    case Operation::peek: return 'p';
    case Operation::refund: return 'r';
    case Operation::force: return 'f';
  }
  return 'p';
}

}  // namespace

std::string_view bucket_script() { return kScript.substr(1); }

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

std::uint16_t BucketCall::index_of(const limiter::TokenBucket& bucket) {
  // The newest first: neighbours mostly ask about the same limit.
  for (std::size_t i = limits_.size(); i > 0; --i) {
    if (limits_[i - 1] == bucket) return static_cast<std::uint16_t>(i - 1);
  }
  limits_.push_back(bucket);
  return static_cast<std::uint16_t>(limits_.size() - 1);
}

void BucketCall::note_key(std::string_view redis_key) {
  // Two keys with one hash count as repeated: that costs a little of Redis's time and changes nothing.
  const auto hash =
      std::max<std::uint32_t>(1, static_cast<std::uint32_t>(XXH3_64bits(redis_key.data(), redis_key.size())));
  std::size_t slot = hash % seen_.size();
  while (seen_[slot] != 0) {
    if (seen_[slot] == hash) has_repeated_key_ = true;
    slot = (slot + 1) % seen_.size();
  }
  seen_[slot] = hash;
}

void BucketCall::add(Operation operation, const limiter::TokenBucket& bucket, std::string_view redis_key,
                     std::int64_t cost, std::uint64_t ticket, bool was_repeated) {
  assert(!is_full());
  const std::uint16_t limit_index = index_of(bucket);
  note_key(redis_key);
  write_bulk(keys_, redis_key);
  constexpr std::size_t kLineEnd = 2;
  const auto key_offset = static_cast<std::uint32_t>(keys_.size() - redis_key.size() - kLineEnd);
  items_.push_back({operation, limit_index, cost, ticket, key_offset,
                    static_cast<std::uint32_t>(redis_key.size()), was_repeated});
  // More than everything is everything: keeps the product exact for costs without bound.
  const std::int64_t units =
      cost <= limiter::kMaxUsed / bucket.unit() ? cost * bucket.unit() : limiter::kMaxUsed;
  if (!runs_.empty() && runs_.back().limit_index == limit_index && runs_.back().operation == operation &&
      runs_.back().units == units) {
    ++runs_.back().count;
  } else {
    runs_.push_back({limit_index, operation, units, 1});
  }
}

void BucketCall::write(ByteBuffer& out, std::string_view sha, limiter::TimePoint now) const {
  constexpr std::size_t kFixedParts = 6;  // EVALSHA, sha, numkeys, now, repeats, limits
  write_command_header(out, kFixedParts + items_.size() + 3 * limits_.size() + 4 * runs_.size());
  write_bulk(out, "EVALSHA");
  write_bulk(out, sha);
  write_bulk(out, static_cast<std::int64_t>(items_.size()));
  out.append(keys_.view());
  write_bulk(out, std::int64_t{now.time_since_epoch().count()});
  write_bulk(out, std::int64_t{has_repeated_key_ ? 1 : 0});
  write_bulk(out, static_cast<std::int64_t>(limits_.size()));
  for (const limiter::TokenBucket& bucket : limits_) {
    write_bulk(out, bucket.unit());
    write_bulk(out, bucket.refill());
    write_bulk(out, bucket.full());
  }
  for (const Run& run : runs_) {
    const char letter = letter_of(run.operation);
    write_bulk(out, std::int64_t{run.limit_index} + 1);
    write_bulk(out, std::string_view(&letter, 1));
    write_bulk(out, run.units);
    write_bulk(out, std::int64_t{run.count});
  }
}

bool BucketCall::fits(const redisReply& reply, std::size_t questions) {
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != questions + 1) return false;
  return std::all_of(reply.element, reply.element + reply.elements,
                     [](const redisReply* element) { return element->type == REDIS_REPLY_INTEGER; });
}

Answer BucketCall::answer(const redisReply& reply, std::size_t index) const {
  const Item& item = items_[index];
  const std::int64_t number = reply.element[index]->integer;
  const std::int64_t used = number >= 0 ? number : -1 - number;
  if (number == kUnknownFormat || used > limiter::kMaxUsed) return {};
  if (number >= 0)
    return {Answer::Status::decided, false, bucket(item).describe(used, item.cost, Verdict::ok)};
  const auto decision = bucket(item).describe(used, item.cost, Verdict::limited);
  if (decision.retry_after.count() <= 0) return {};  // refused what would fit: not our script
  return {Answer::Status::decided, false, decision};
}

std::uint64_t BucketCall::healed(const redisReply& reply) {
  return static_cast<std::uint64_t>(std::max(0LL, reply.element[reply.elements - 1]->integer));
}

}  // namespace allowd::store
