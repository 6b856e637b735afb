// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/script_parts.h"

namespace allowd::store {

namespace {

// For servers without PEXPIRE NX, and to put right what INCRBY cannot count.
// KEYS  one per question
// ARGV  "c", now, then (operation, cost, W in milliseconds) per question
// Reply per question: the count and the milliseconds until its window ends; then how many values were put
// right.
constexpr std::string_view kCounterPart = R"lua(
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

}  // namespace

std::string_view counter_part() { return kCounterPart.substr(1); }

}  // namespace allowd::store
