// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/script_parts.h"

namespace allowd::store {

namespace {

// KEYS  one per question. One that occurs twice is decided in order.
// ARGV  "t", now, number of limits, of each the number of its tiers and of each tier (8 bytes of its
//       identity, algorithm's letter, three numbers, tick, "1" if it only watches); then (limit, operation,
//       cost, times) per question: takes and peeks that are asked so many times in a row. The numbers of a
//       bucket are unit, refill and full, of a window N, W and 0.
// Reply per question: 1 if the first passed, 0 if not, then per tier the three numbers as they stood before
//       (0, 0, 0: unknown); then how many values were put right.
//
// A value is the format number and a part per tier, of 34 bytes: its identity, three numbers (bucket: unit,
// used, last; window: count before, count, start), and the second at which it may be forgotten. Parts that no
// tier of the limit claims are kept until then, at most 16.
constexpr std::string_view kTierPart = R"lua(
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
    if cost > 0 and not is_drained(used - full, over, refill, tick) then
      writes, after = true, used + cost
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
  local running = c and at < c + length and (a > 0 or b > 0 or c > 0)
  local count, start = 0, tier.letter == 'a' and at - at % length or at
  if running then count, start = b, c end
  local passes = op == 'r' or op == 'f' or cost == 0 or count + cost <= most
  local after = count
  if passes and cost > 0 and (running or op ~= 'r') then after = counted(count, most, op, cost) end
  return passes, after ~= count, 1, after, start, start + length
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
  local times = op == 't' and tonumber(ARGV[at + 4]) or 1
  at = at + 4
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
    local status, passes, changed, latest, current = #reply + 1, true, false, 0, {}
    reply[status] = 1
    for i = 1, #tiers do
      local part = parts[tiers[i].identity] or {}
      current[i] = {part[1], part[2], part[3]}
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = part[1] or 0, part[2] or 0, part[3] or 0
    end
    for round = 1, times do
      local after, fit, writing = {}, true, false
      for i = 1, #tiers do
        local tier, as = tiers[i], current[i]
        local fits, writes, a, b, c, free = tier.decide(tier, as[1], as[2], as[3], op, cost)
        if not fits and not tier.watches then fit = false end
        if fits and writes then after[i], writing = {a, b, c, free}, true end
        if as[1] and free > latest then latest = free end
      end
      if round == 1 then passes = fit end
      if not fit or not writing then break end
      changed = true
      for i = 1, #tiers do current[i] = after[i] or current[i] end
    end
    if changed then
      local text = {pack('B', FORMAT)}
      latest = 0
      for i = 1, #tiers do
        local identity, new = tiers[i].identity, current[i]
        if new[4] then
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

}  // namespace

std::string_view tier_part() { return kTierPart.substr(1); }

}  // namespace allowd::store
