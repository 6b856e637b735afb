// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/bucket_call.h"

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
      runs_.back().operation == item.operation && runs_.back().units == units &&
      runs_.back().times == item.times) {
    ++runs_.back().count;
  } else {
    runs_.push_back({item.definition_index, item.operation, units, item.times, 1});
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
    write_bulk(out, std::int64_t{run.times});
    write_bulk(out, std::int64_t{run.count});
  }
}

void BucketCall::write_empty(ByteBuffer& out, std::string_view sha, std::string_view redis_key) {
  write_command(out, {"EVALSHA", sha, "1", redis_key, "b", "0", "0", "0"});
}

std::vector<SharedAnswer> BucketCall::answers(const redisReply& reply) const {
  std::vector<SharedAnswer> all(items().size(), no_answer());
  std::size_t next_tick = items().size();
  // Of what is asked together, all are charged or none is.
  const bool is_charged =
      !is_together_ || std::all_of(reply.element, reply.element + items().size(),
                                   [](const auto* number) { return number->integer >= 0; });
  for (std::size_t i = 0; i < items().size(); ++i) {
    const Item& item = items()[i];
    const limiter::TokenBucket& rules = bucket(item);
    const std::int64_t number = reply.element[i]->integer;
    const std::int64_t used = number >= 0 ? number : -1 - number;
    limiter::Micros since_tick{0};
    if (rules.tick().count() > 1) since_tick = limiter::Micros{reply.element[next_tick++]->integer};
    if (number == kUnknownFormat || used > limiter::kMaxUsed) continue;
    if (since_tick.count() < 0 || since_tick >= rules.tick()) continue;  // not our script
    limiter::TierState state{rules.unit(), used, asked_at() - since_tick};
    limiter::Decision decision;
    if (item.operation != limiter::Operation::refund) {
      limiter::TierState after = state;
      const auto operation = is_charged ? item.operation : limiter::Operation::peek;
      decision = definition(item).apply({&after, 1}, operation, item.cost, asked_at());
      const bool is_refused = decision.retry_after.count() != 0;
      if (is_refused == (number >= 0)) continue;  // decided otherwise: not our script
    } else {
      if (number < 0) continue;
      decision = rules.describe(used, item.cost, Verdict::ok, since_tick);
    }
    SharedAnswer& answer = all[i];
    answer.status = Answer::Status::decided;
    answer.decision = decision;
    answer.states.front() = state;
    answer.has_charged =
        is_together_ && is_charged && item.operation == limiter::Operation::take && item.cost > 0;
  }
  return all;
}

}  // namespace allowd::store
