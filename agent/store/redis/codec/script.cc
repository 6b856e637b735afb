// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/script.h"

#include <string>

#include "agent/store/redis/codec/script_parts.h"

namespace allowd::store {
namespace {

// What all parts share.
constexpr std::string_view kPrelude = R"lua(
local unpack, pack, read = table.unpack or unpack, struct.pack, struct.unpack
local call, ceil, format, byte, sub = redis.call, math.ceil, string.format, string.byte, string.sub
local MOST, LATEST, UNKNOWN = 4503599627370496, 9007199254740992, -9007199254740992
local kind, now = ARGV[1], tonumber(ARGV[2])
local tells_time = not now
if tells_time then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local ttls, reply, healed = {}, {}, 0

-- 60 s beyond the microseconds until the reset, in whole seconds so that equal ones are printed once; at most 400 days
local function ttl_of(micros)
  local s = micros / 1000000
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

-- Whether `used` units have come back, `over` microseconds after the last whole tick; and whether taking `excess`
-- more than there is leaves nothing. Both with the part of a tick: what began to count at the tick would mint.
local function is_back(used, over, refill, tick)
  return used == 0 or (used <= refill and used * tick <= over * refill)
end
local function is_drained(excess, over, refill, tick)
  return excess >= refill or (excess >= 0 or over > 0) and excess * tick >= over * refill
end

-- a refusal leaves the value alone, but sees to it that it lives as long as the use it counts
local function prolong(key, micros)
  local left = call('PTTL', key)
  if left < micros / 1000 then
    call('EXPIRE', key, ttl_of(micros))
    if left == -1 then healed = healed + 1 end
  end
end

local function is_newer(value, own)
  local number = byte(value, 1) or 0
  return number > own and number < 32
end

-- MGET shows a value of another type as none: NX finds it out at no cost
local function put(key, ttl, text, is_known)
  if is_known == nil and call('SET', key, text, 'EX', ttl, 'NX') then return end
  call('SETEX', key, ttl, text)
  if not is_known then healed = healed + 1 end
end
)lua";

constexpr std::string_view kEnd = R"lua(
if tells_time then reply[#reply + 1] = now end
reply[#reply + 1] = healed
return reply
)lua";

}  // namespace

std::string_view decision_script() {
  static const std::string text = [] {
    std::string all;
    all += kPrelude.substr(1);
    for (const std::string_view part : {bucket_part(), tier_part(), log_part(), counter_part()}) all += part;
    all += kEnd.substr(1);
    return all;
  }();
  return text;
}

}  // namespace allowd::store
