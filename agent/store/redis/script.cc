// SPDX-License-Identifier: MIT
#include "agent/store/redis/script.h"

#include <string>

namespace allowd::store {
namespace {

// What all parts share.
constexpr std::string_view kPrelude = R"lua(
local unpack, pack, read = unpack or table.unpack, struct.pack, struct.unpack
local call, ceil, format, byte, sub = redis.call, math.ceil, string.format, string.byte, string.sub
local MOST, LATEST, UNKNOWN = 4503599627370496, 9007199254740992, -9007199254740992
local kind, now = ARGV[1], tonumber(ARGV[2])
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

// KEYS  one per question. One that occurs twice is decided in order.
// ARGV  "b", now, "1" if a key occurs twice, "2" if all pass or none is charged (then none does), number of
// limits, (unit, refill, full, tick) of each,
//       then runs of (limit, operation, units, number of questions)
// Reply one number per question: used when it passed, -1 - used when not; then, for every question under a
// limit
//       with ticks above 1 µs, the microseconds since its last whole tick; then how many values were put
//       right.
constexpr std::string_view kBuckets = R"lua(
if kind == 'b' then
local FORMAT = 1
local LAYOUT = '<BI7I7I7I5'  -- format, unit, last, used, and the second of the clock at which it will be full
local repeats, limits = ARGV[3] == '1', tonumber(ARGV[4])
local units, refills, fulls, ticks, at = {}, {}, {}, {}, 4
for i = 1, limits do
  units[i], refills[i] = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  fulls[i], ticks[i] = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  at = at + 4
end
local values, written, overs, k = call('MGET', unpack(KEYS)), {}, {}, 0
local together, first, only_looks = ARGV[3] == '2', at, ARGV[3] == '2'
while at < #ARGV do
  local limit, op, cost = tonumber(ARGV[at + 1]), ARGV[at + 2], tonumber(ARGV[at + 3])
  local unit, refill, full, tick = units[limit], refills[limit], fulls[limit], ticks[limit]
  local last_of_run = k + tonumber(ARGV[at + 4])
  at = at + 4
  if only_looks and op == 't' then op = 'p' end
  while k < last_of_run do
    k = k + 1
    local key, value, used, last, over = KEYS[k], values[k], 0, now, 0
    if repeats then value = written[key] or value end
    local known, newer, full_at
    if value then
      known = false
      if #value == 27 then
        local number, u, l, s, second = read(LAYOUT, value)
        if number == FORMAT and u >= 1 and u <= MOST and s <= MOST and l <= LATEST then
          known, full_at = true, second
          if u ~= unit then s = convert(s, u, unit) end
          if l > now then
            last, used = l, s
          else
            local back = now - l
            if tick > 1 then
              over = back % tick
              back = (back - over) / tick
            end
            used = back < s / refill and s - back * refill or 0
            if is_back(used, over, refill, tick) then
              used, over = 0, 0
            end
            last = now - over
          end
        else
          newer = number > FORMAT and number < 32
        end
      else
        newer = is_newer(value, FORMAT)
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
        if writes and is_back(after, over, refill, tick) then after, last, over = 0, last + over, 0 end
      elseif used < full and cost > 0 then
        after = used + cost
        if is_drained(after - full, over, refill, tick) then after, last, over = full, last + over, 0 end
      end
      if writes or after ~= used then
        local second = (last + after / refill * tick) / 1000000
        second = second - second % 1
        local text = pack(LAYOUT, FORMAT, unit, last, after, second)
        if second == full_at then
          call('SETRANGE', key, '0', text)  -- the cheapest write that there is: the TTL stays right
        else
          put(key, ttl_of(after / refill * tick), text, known)
        end
        if repeats then written[key] = text end
      elseif known and not passes then
        prolong(key, used / refill * tick)
      end
      reply[k] = passes and after or -1 - used
    end
    if tick > 1 then overs[#overs + 1] = over end
  end
  if together and at >= #ARGV then
    -- looked at all: once more, to charge, if none refuses
    together = false
    local refused = false
    for i = 1, k do refused = refused or reply[i] < 0 end
    if not refused then at, k, overs, only_looks = first, 0, {}, false end
  end
end
for i = 1, #overs do reply[k + i] = overs[i] end
end
)lua";

// KEYS  one per question. One that occurs twice is decided in order.
// ARGV  "t", now, number of limits, of each the number of its tiers and of each tier (8 bytes of its
// identity,
//       algorithm's letter, three numbers, tick, "1" if it only watches); then (limit, operation, cost) per
//       question. The numbers of a bucket are unit, refill and full, of a window N, W and 0.
// Reply per question: 1 if it passed, 0 if not, then per tier the three numbers as they stood before (0, 0,
// 0:
//       unknown); then how many values were put right.
//
// A value is the format number and a part per tier, of 34 bytes: its identity, three numbers (bucket: unit,
// used, last; window: count before, count, start), and the second at which it may be forgotten. Parts that no
// tier of the limit claims are kept until then, at most 16.
constexpr std::string_view kTiers = R"lua(
if kind == 't' then
local FORMAT, LAYOUT, PART, MOST_OTHERS = 2, '<I7I7I7I5', 34, 16

-- Each takes a tier, its three numbers or nil, operation and cost; gives: passes, whether to write, the three numbers
-- afterwards, and when they will not matter any more.
local function bucket(tier, a, b, c, op, cost)
  local unit, refill, full, tick = tier.x, tier.y, tier.z, tier.tick
  local used, last, over, known = 0, now, 0, a and a >= 1
  if known then
    local s = a == unit and b or convert(b, a, unit)
    if c > now then
      last, used = c, s
    else
      over = (now - c) % tick
      local back = (now - c - over) / tick
      used = back < s / refill and s - back * refill or 0
      if is_back(used, over, refill, tick) then used, over = 0, 0 end
      last = now - over
    end
  end
  cost = cost <= MOST / unit and cost * unit or MOST
  local passes, after, writes = true, used, false
  if op == 'r' then
    writes = known and cost > 0
    if writes then after = used > cost and used - cost or 0 end
    if writes and is_back(after, over, refill, tick) then after, last = 0, last + over end
  elseif op == 'f' then
    if used < full and cost > 0 then
      after = used + cost
      if is_drained(after - full, over, refill, tick) then after, last = full, last + over end
    end
  else
    passes = cost == 0 or used + cost <= full
    if passes and op == 't' then after = used + cost end
  end
  return passes, writes or after ~= used, unit, after, last, last + ceil(after / refill) * tick
end

local function counted(count, most, op, cost)
  if op == 'r' then return count > cost and count - cost or 0 end
  if op == 'f' then
    local after = count + cost < most and count + cost or most
    return after > count and after or count
  end
  return op == 't' and count + cost or count
end

local function fixed_window(tier, a, b, c, op, cost)
  local most, length = tier.x, tier.y
  local at = c and c > now and c or now
  local running = c and at < c + length and (b > 0 or c > 0)
  local count, start = 0, tier.letter == 'a' and at - at % length or at
  if running then count, start = b, c end
  local passes = op == 'r' or op == 'f' or cost == 0 or count + cost <= most
  local after = count
  if passes and cost > 0 and (running or op ~= 'r') then after = counted(count, most, op, cost) end
  return passes, after ~= count, 0, after, start, start + length
end

local function sliding_window(tier, a, b, c, op, cost)
  local most, length, tick = tier.x, tier.y, tier.tick
  local before, count, start = 0, 0, now - now % length
  if c and c >= start then
    before, count, start = a, b, c
  elseif c and c + length == start then
    before = b
  end
  local into = now > start and now - start or 0
  into = (into - into % tick) / tick
  local ticks = length / tick
  local passes = op == 'r' or op == 'f' or cost == 0 or
    (cost <= most - count and before * (ticks - into) <= (most - count - cost) * ticks)
  local after = passes and counted(count, most, op, cost) or count
  return passes, after ~= count, before, after, start, start + (after > 0 and 2 or 1) * length
end

local deciders = {b = bucket, f = fixed_window, a = fixed_window, s = sliding_window}
local defined, at = {}, 3
for i = 1, tonumber(ARGV[3]) do
  local tiers = {}
  at = at + 1
  for j = 1, tonumber(ARGV[at]) do
    tiers[j] = {identity = ARGV[at + 1], letter = ARGV[at + 2], decide = deciders[ARGV[at + 2]],
      x = tonumber(ARGV[at + 3]), y = tonumber(ARGV[at + 4]), z = tonumber(ARGV[at + 5]),
      tick = tonumber(ARGV[at + 6]), watches = ARGV[at + 7] == '1'}
    at = at + 7
  end
  defined[i] = tiers
end

local values, written = call('MGET', unpack(KEYS)), {}
for k = 1, #KEYS do
  local tiers, op, cost = defined[tonumber(ARGV[at + 1])], ARGV[at + 2], tonumber(ARGV[at + 3])
  at = at + 3
  local key, known, newer = KEYS[k], nil, false
  local value, parts, order = written[key] or values[k], {}, {}
  if value then
    known = false
    newer = is_newer(value, FORMAT)
    if byte(value, 1) == FORMAT and (#value - 1) % PART == 0 then
      known = true
      for i = 2, #value, PART do
        local a, b, c, second = read(LAYOUT, value, i + 8)
        if a > MOST or b > MOST or c > LATEST then known = false break end
        local identity = sub(value, i, i + 7)
        parts[identity] = {a, b, c, second, sub(value, i, i + PART - 1)}
        order[#order + 1] = identity
      end
      if not known then parts, order = {}, {} end
    end
  end
  if newer then
    reply[#reply + 1] = UNKNOWN
    for i = 1, 3 * #tiers do reply[#reply + 1] = 0 end
  else
    local status, after, passes, latest = #reply + 1, {}, true, 0
    reply[status] = 1
    for i = 1, #tiers do
      local tier = tiers[i]
      local part = parts[tier.identity] or {}
      local fits, writes, a, b, c, free = tier.decide(tier, part[1], part[2], part[3], op, cost)
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = part[1] or 0, part[2] or 0, part[3] or 0
      after[i] = fits and writes and {a, b, c, free}
      if not fits and not tier.watches then passes = false end
      if part[1] and free > latest then latest = free end
    end
    local changed = false
    for i = 1, #tiers do changed = changed or after[i] end
    if passes and changed then
      local text = {pack('B', FORMAT)}
      latest = 0
      for i = 1, #tiers do
        local identity, new = tiers[i].identity, after[i]
        if new then
          local second = (new[4] / 1000000)
          second = second - second % 1 + 61
          text[#text + 1] = identity
          text[#text + 1] = pack(LAYOUT, new[1], new[2], new[3], second)
          if new[4] > latest then latest = new[4] end
        elseif parts[identity] then
          local part = parts[identity]
          text[#text + 1] = part[5]
          if part[4] * 1000000 - 60000000 > latest then latest = part[4] * 1000000 - 60000000 end
        end
        parts[identity] = nil
      end
      local others = 0
      for i = 1, #order do
        local part = parts[order[i]]
        if part and part[4] * 1000000 > now and others < MOST_OTHERS then
          others = others + 1
          text[#text + 1] = part[5]
          if part[4] * 1000000 - 60000000 > latest then latest = part[4] * 1000000 - 60000000 end
        end
      end
      text = table.concat(text)
      put(key, ttl_of(latest > now and latest - now or 0), text, known)
      written[key] = text
    elseif known and not passes and latest > now then
      prolong(key, latest - now)
    end
    if not passes then reply[status] = 0 end
  end
end
end
)lua";

// KEYS  one per question. One that occurs twice is decided in order.
// ARGV  "l", now, then (operation, cost, N, W) per question
// Reply per question: 1 if it passed, 0 if not, the permits used afterwards, when all will be free, when the
// cost
//       will fit (0 unless refused), when one more than remains will (0 when nothing is used); then how many
//       values were put right.
//
// A value is the format number and 9 bytes per stamp, oldest first: its time (7) and how many permits (2).
constexpr std::string_view kLogs = R"lua(
if kind == 'l' then
local FORMAT, STAMP = 3, '<I7I2'
local values, written, at = call('MGET', unpack(KEYS)), {}, 2

-- when no more than `most` of `used` are left
local function shrinks_to(times, counts, used, most, length)
  for i = 1, #times do
    used = used - counts[i]
    if used <= most then return times[i] + length end
  end
  return 0
end

for k = 1, #KEYS do
  local op, cost, most, length = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  at = at + 4
  local key, known, newer = KEYS[k], nil, false
  local value, times, counts, used, clock = written[key], {}, {}, 0, now
  if value == nil then value = values[k] end
  if value then
    known = false
    newer = is_newer(value, FORMAT)
    if byte(value, 1) == FORMAT and (#value - 1) % 9 == 0 and #value <= 9001 then
      known = true
      local newest = 0
      for i = 2, #value, 9 do
        local time, count = read(STAMP, value, i)
        if time < newest or time > LATEST or count < 1 or count > 1000 then known = false break end
        newest = time
        times[#times + 1], counts[#counts + 1] = time, count
      end
      if not known then times, counts, newest = {}, {}, 0 end
      if newest > clock then clock = newest end
      local kept_times, kept_counts = {}, {}
      for i = 1, #times do
        if times[i] + length > clock then
          kept_times[#kept_times + 1], kept_counts[#kept_counts + 1] = times[i], counts[i]
          used = used + counts[i]
        end
      end
      times, counts = kept_times, kept_counts
    end
  end
  if newer then
    for i = 1, 5 do reply[#reply + 1] = i == 1 and UNKNOWN or 0 end
  else
    local passes, add, back = true, 0, 0
    if op == 'r' then
      back = cost < used and cost or used
    elseif op == 'f' then
      add = cost < most - used and cost or most - used
    else
      passes = cost == 0 or used + cost <= most
      if passes and op == 't' then add = cost end
    end
    if add > 0 or back > 0 then
      if add > 0 and times[#times] == clock then
        counts[#times] = counts[#times] + add
      elseif add > 0 then
        times[#times + 1], counts[#counts + 1] = clock, add
      end
      used = used + (add > 0 and add or 0) - back
      while back > 0 do
        local taken = back < counts[#counts] and back or counts[#counts]
        back = back - taken
        counts[#counts] = counts[#counts] - taken
        if counts[#counts] == 0 then times[#times], counts[#counts] = nil, nil end
      end
      if used == 0 then
        call('DEL', key)
        written[key] = false
      else
        local text = {pack('B', FORMAT)}
        for i = 1, #times do text[i + 1] = pack(STAMP, times[i], counts[i]) end
        text = table.concat(text)
        if written[key] == false then known = nil end
        put(key, ttl_of(times[#times] + length - clock), text, known)
        written[key] = text
      end
    elseif known and not passes and used > 0 then
      prolong(key, times[#times] + length - clock)
    end
    local remaining = most > used and most - used or 0
    local n = #reply
    reply[n + 1], reply[n + 2] = passes and 1 or 0, used
    reply[n + 3] = used > 0 and times[#times] + length or 0
    reply[n + 4] = passes and 0 or shrinks_to(times, counts, used, most - cost, length)
    reply[n + 5] = used > 0 and shrinks_to(times, counts, used, most - remaining - 1, length) or 0
  end
end
end
)lua";

// For servers without PEXPIRE NX, and to put right what INCRBY cannot count.
// KEYS  one per question
// ARGV  "c", now, then (operation, cost, W in milliseconds) per question
// Reply per question: the count and the milliseconds until its window ends; then how many values were put
// right.
constexpr std::string_view kCounters = R"lua(
if kind == 'c' then
local at = 2
for k = 1, #KEYS do
  local key, op, cost, length = KEYS[k], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  at = at + 3
  local value = redis.pcall('GET', key)
  local count = type(value) == 'string' and tonumber(value) or 0
  local known = type(value) == 'string' and string.find(value, '^%d+$') and count <= MOST
  if value and not known then count = 0 end
  local left = 0
  if cost > 0 and (op == 't' or op == 'f') then
    if value and not known then
      call('DEL', key)
      healed = healed + 1
    end
    count = call('INCRBY', key, format('%.0f', cost))
    left = call('PTTL', key)
    if left < 0 then
      if known then healed = healed + 1 end
      call('PEXPIRE', key, length)
      left = tonumber(length)
    end
  elseif known then
    left = call('PTTL', key)
  end
  reply[2 * k - 1], reply[2 * k] = count, left > 0 and left or 0
end
end
)lua";

constexpr std::string_view kEnd = R"lua(
reply[#reply + 1] = healed
return reply
)lua";

}  // namespace

std::string_view decision_script() {
  static const std::string text = [] {
    std::string all;
    for (const std::string_view part : {kPrelude, kBuckets, kTiers, kLogs, kCounters, kEnd})
      all += part.substr(1);
    return all;
  }();
  return text;
}

}  // namespace allowd::store
