// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/script_parts.h"

namespace allowd::store {

namespace {

// KEYS  one per question. One that occurs twice is decided in order.
// ARGV  "l", now, then (operation, cost, N, W) per question
// Reply per question: 1 if it passed, 0 if not, the permits used afterwards, when all will be free, when the
// cost
//       will fit (0 unless refused), when one more than remains will (0 when nothing is used); then how many
//       values were put right.
//
// A value is the format number and 9 bytes per stamp, oldest first: its time (7) and how many permits (2).
constexpr std::string_view kLogPart = R"lua(
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

}  // namespace

std::string_view log_part() { return kLogPart.substr(1); }

}  // namespace allowd::store
