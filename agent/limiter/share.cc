// SPDX-License-Identifier: MIT
#include "agent/limiter/share.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "agent/limiter/arithmetic.h"

namespace allowd::limiter {
namespace {

std::optional<TokenBucket> share_of(const Tier& tier, std::int64_t agents) {
  const std::int64_t capacity = std::max<std::int64_t>(1, tier.capacity() / agents);
  const Rate rate = tier.rate();
  const Micros period = rate.period * agents;
  if (auto exact = TokenBucket::make({rate.count, period}, capacity)) return *exact;
  // count/unit permits per µs, with the largest unit that a bucket of that capacity can count in. Rounding
  // the count down slows it by less than one part in itself.
  const std::int64_t divisor = std::gcd(rate.count, period.count());
  const std::int64_t count = rate.count / divisor, unit = period.count() / divisor;
  const std::int64_t coarse_unit = std::min(unit, (kMaxUsed - 1) / capacity);
  const auto coarse_count = static_cast<std::int64_t>(Wide{count} * coarse_unit / unit);
  if (coarse_count == 0) return std::nullopt;
  auto coarse = TokenBucket::make({coarse_count, Micros{coarse_unit}}, capacity);
  if (!coarse) return std::nullopt;
  return *coarse;
}

}  // namespace

DefinitionPtr share_of(const Definition& definition, std::int64_t agents) {
  agents = std::clamp<std::int64_t>(agents, 1, kMostShares);
  std::vector<Tier> tiers;
  for (const Tier& tier : definition.tiers()) {
    const auto bucket = share_of(tier, agents);
    if (!bucket) return nullptr;
    tiers.push_back({tier.name, *bucket, tier.shadow});
  }
  auto share = Definition::make(std::move(tiers), definition.is_shadow());
  return share ? *share : nullptr;
}

}  // namespace allowd::limiter
