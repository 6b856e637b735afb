// SPDX-License-Identifier: MIT
//
// Prefilter, as far as others ask what it knows.
#include <algorithm>

#include "agent/prefilter/prefilter.h"

namespace allowd::prefilter {

using limiter::Operation;

std::optional<std::uint32_t> Prefilter::most_agents() const {
  std::optional<std::uint32_t> most;
  for (std::uint32_t shard = 0; shard < times_.size(); ++shard) most = std::max(most, store_.agents(shard));
  return most;
}

store::KnownLeft Prefilter::known_left(const store::Question& question, SteadyTime now) {
  store::KnownLeft left{};
  const KnownKey* key = keys_.find(question.state_hash());
  if (key == nullptr || key->definition != question.definition->digest()) return left;
  static_cast<void>(time_of(key->shard, now));
  const SeenTime& seen = times_[key->shard];
  if (seen.known.epoch != key->epoch) return left;
  // The shard's clock may be out of reach; it has not stopped.
  const limiter::TimePoint at = std::max(key->level.at, seen.known.now + (now - seen.known_at));
  const auto& tiers = question.definition->tiers();
  const auto note = [&](std::size_t tier, limiter::TierState state) {
    left[tier] = tiers[tier].apply(state, Operation::peek, 0, at).remaining;
  };
  switch (key->level.kind) {
    case Level::Kind::unknown: break;
    case Level::Kind::tier: note(key->level.tier, key->level.state); break;
    case Level::Kind::tiers:
      for (std::size_t i = 0; i < tiers.size(); ++i) note(i, keys_.tiers_of(*key)[i]);
      break;
    case Level::Kind::until:
      if (at < key->level.state.at)
        left[0] = std::max<std::int64_t>(0, tiers[0].capacity() - key->level.state.used);
      break;
  }
  return left;
}

}  // namespace allowd::prefilter
