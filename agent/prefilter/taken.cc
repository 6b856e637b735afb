// SPDX-License-Identifier: MIT
#include "agent/prefilter/taken.h"

#include <algorithm>
#include <bit>
#include <variant>

namespace allowd::prefilter {
namespace {

store::Taken taken_of(const limiter::Tier& tier, limiter::TierState before, limiter::TierState after,
                      limiter::TimePoint at) {
  if (const auto* bucket = std::get_if<limiter::TokenBucket>(&tier.algorithm)) {
    auto own = std::bit_cast<limiter::BucketState>(before);
    bucket->advance(own, at);
    // What is used beyond full was taken before.
    return {std::max<std::int64_t>(0, after.used - own.used), bucket->unit()};
  }
  const auto left = [&](limiter::TierState& state) {
    return tier.apply(state, limiter::Operation::peek, 0, at).remaining;
  };
  return {std::max<std::int64_t>(0, left(before) - left(after)), 1};
}

}  // namespace

std::vector<store::Taken> taken_between(const limiter::Definition& definition,
                                        std::span<const limiter::TierState> before,
                                        std::span<const limiter::TierState> after, limiter::TimePoint at) {
  std::vector<store::Taken> taken;
  for (std::size_t i = 0; i < definition.tiers().size(); ++i)
    taken.push_back(taken_of(definition.tiers()[i], before[i], after[i], at));
  return taken;
}

}  // namespace allowd::prefilter
