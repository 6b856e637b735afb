// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/script_parts.h"

namespace allowd::store {

namespace {

// KEYS  one per question. One that occurs twice is decided in order.
// ARGV  "b", now, "1" if a key occurs twice, "2" if all pass or none is charged (then none does), number of
//       limits, (unit, refill, full, tick) of each, then runs of (limit, operation, units, times, number of
//       questions): takes and peeks that are asked so many times in a row.
// Reply one number per question: used before the takes, peeks or force if the first passed, -1 - used if not;
//       after a refund. Then, for every question under a limit with ticks above 1 µs, the microseconds
//       since its last whole tick; then how many values were put right.
constexpr std::string_view kBucketPart = R"lua(
if kind == 'b' then
local FORMAT = 1
local LAYOUT = '<BI7I7I7I5'  -- format, unit, last, used, and the second of the clock at which it will be full
local keys = KEYS  -- a global is looked up each time
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
  local limit, op, cost, times = tonumber(ARGV[at + 1]), ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local unit, refill, full, tick = units[limit], refills[limit], fulls[limit], ticks[limit]
  local last_of_run = k + tonumber(ARGV[at + 5])
  at = at + 5
  if only_looks and op == 't' then op = 'p' end
  -- Keys that are not there are alike: what is written for one is written for all of a run.
  local may_be_new, new_text, new_ttl = op == 't' and times == 1 and cost > 0 and cost <= full and not repeats
  while k < last_of_run do
    k = k + 1
    local key, value, used, last, over = keys[k], values[k], 0, now, 0
    if repeats then value = written[key] or value end
    if may_be_new and not value then
      if not new_text then
        local second = (now + cost / refill * tick) / 1000000
        new_text = pack(LAYOUT, FORMAT, unit, now, cost, second - second % 1)
        new_ttl = ttl_of(cost / refill * tick)
      end
      put(key, new_ttl, new_text)
      reply[k] = 0
      if tick > 1 then overs[#overs + 1] = 0 end
    else
      local known, newer, full_at
      if value then
        known = false
        if #value == 27 then
          local number, u, l, s, second = read(LAYOUT, value)
          if number == FORMAT and u >= 1 and u <= MOST and s <= MOST and l <= LATEST then
            known, full_at = true, second
            if u ~= unit then s = convert(s, u, unit) end
            local back = now - l
            if back < 0 then
              last, used = l, s
            else
              if tick > 1 then
                over = back % tick
                back = (back - over) / tick
              end
              used = s - back * refill  -- exact as far as it is not negative: no use is above MOST
              if used < 0 then used = 0 end
              if tick > 1 and is_back(used, over, refill, tick) then
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
          if passes and times == 1 then
            after = used + cost
          elseif passes and cost > 0 then
            local room = full - used
            local fit = (room - room % cost) / cost
            after = used + (fit < times and fit or times) * cost
          end
        elseif op == 'p' then
          passes = used + cost <= full or cost == 0
        elseif op == 'r' then
          -- written also when it is full already: what it stood at before has no say any more
          writes = known and cost > 0
          if writes then after = used > cost and used - cost or 0 end
          if writes and is_back(after, over, refill, tick) then after, last, over = 0, last + over, 0 end
        elseif cost > 0 and not is_drained(used - full, over, refill, tick) then
          writes, after = true, used + cost
          if is_drained(after - full, over, refill, tick) then after, last = full, last + over end
        end
        if writes or after ~= used then
          local micros = after / refill * tick
          local second = (last + micros) / 1000000
          second = second - second % 1
          local text = pack(LAYOUT, FORMAT, unit, last, after, second)
          if second == full_at then
            call('SETRANGE', key, '0', text)  -- the cheapest write that there is: the TTL stays right
          elseif known then
            call('SETEX', key, ttl_of(micros), text)
          else
            put(key, ttl_of(micros), text, known)
          end
          if repeats then written[key] = text end
        elseif known and not passes then
          prolong(key, used / refill * tick)
        end
        reply[k] = op == 'r' and after or passes and used or -1 - used
      end
      if tick > 1 then overs[#overs + 1] = over end
    end
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

}  // namespace

std::string_view bucket_part() { return kBucketPart.substr(1); }

}  // namespace allowd::store
