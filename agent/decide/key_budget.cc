// SPDX-License-Identifier: MIT
#include "agent/decide/key_budget.h"

#include <cassert>
#include <utility>

#include "agent/log/log.h"
#include "protocol/quoted.h"

namespace allowd::decide {
namespace {

constexpr limiter::Micros kQuietAfter = std::chrono::minutes(1);

}  // namespace

void KeyBudget::set_rate(std::int64_t keys_per_second) {
  auto bucket = limiter::TokenBucket::make({keys_per_second, std::chrono::seconds(1)}, keys_per_second);
  assert(bucket);
  bucket_ = *bucket;
}

bool KeyBudget::admit(store::SteadyTime now) {
  const limiter::TimePoint at{now.time_since_epoch()};
  if (limiter::is_allowed(bucket_->apply(state_, limiter::Operation::take, 1, at))) return true;
  ++refused_;
  note_refusal(now);
  return false;
}

void KeyBudget::note_refusal(store::SteadyTime now) {
  const bool has_begun = !flooded_until_ || now >= *flooded_until_;
  flooded_until_ = now + kQuietAfter;
  if (!has_begun) return;
  ++floods_;
  log::warn("limit {}: more than {} new keys in a second; those beyond share its overflow bucket",
            protocol::quoted(limit_), bucket_->burst());
}

}  // namespace allowd::decide
