// SPDX-License-Identifier: MIT
#include "agent/store/redis/bucket_call.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace allowd::store {

using limiter::Verdict;

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

void BucketCall::on_added(const Item& item) {
  note_key(redis_key(item));
  const limiter::TokenBucket& rules = bucket(item);
  if (rules.tick().count() > 1) ++ticked_;
  // More than everything is everything: keeps the product exact for costs without bound.
  const std::int64_t units =
      item.cost <= limiter::kMaxUsed / rules.unit() ? item.cost * rules.unit() : limiter::kMaxUsed;
  if (!runs_.empty() && runs_.back().definition_index == item.definition_index &&
      runs_.back().operation == item.operation && runs_.back().units == units) {
    ++runs_.back().count;
  } else {
    runs_.push_back({item.definition_index, item.operation, units, 1});
  }
}

void BucketCall::write_arguments(ByteBuffer& out) const {
  write_bulk(out, std::int64_t{is_together_ ? 2 : has_repeated_key_ ? 1 : 0});
  write_bulk(out, static_cast<std::int64_t>(definitions().size()));
  for (const limiter::DefinitionPtr& definition : definitions()) {
    const limiter::TokenBucket& rules = definition->bucket();
    write_bulk(out, rules.unit());
    write_bulk(out, rules.refill());
    write_bulk(out, rules.full());
    write_bulk(out, std::int64_t{rules.tick().count()});
  }
  for (const Run& run : runs_) {
    write_bulk(out, std::int64_t{run.definition_index} + 1);
    write_bulk(out, letter_of(run.operation));
    write_bulk(out, run.units);
    write_bulk(out, std::int64_t{run.count});
  }
}

std::vector<Answer> BucketCall::answers(const redisReply& reply) const {
  std::vector<Answer> all;
  all.reserve(items().size());
  std::size_t next_tick = items().size();
  for (std::size_t i = 0; i < items().size(); ++i) {
    const Item& item = items()[i];
    const limiter::TokenBucket& rules = bucket(item);
    const std::int64_t number = reply.element[i]->integer;
    const std::int64_t used = number >= 0 ? number : -1 - number;
    limiter::Micros since_tick{0};
    if (rules.tick().count() > 1) since_tick = limiter::Micros{reply.element[next_tick++]->integer};
    all.emplace_back();
    if (number == kUnknownFormat || used > limiter::kMaxUsed) continue;
    if (since_tick.count() < 0 || since_tick >= rules.tick()) continue;  // not our script
    const auto decision =
        rules.describe(used, item.cost, number >= 0 ? Verdict::ok : Verdict::limited, since_tick);
    if (number < 0 && decision.retry_after.count() <= 0) continue;  // refused what would fit: not our script
    all.back() = {Answer::Status::decided, false, decision};
    definition(item).judge(all.back().decision);
  }
  return all;
}

}  // namespace allowd::store
