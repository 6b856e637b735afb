// SPDX-License-Identifier: MIT
#include "agent/prefilter/key_cache.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <type_traits>

namespace allowd::prefilter {

// Zeroed memory is a table of free entries.
static_assert(std::is_trivially_copyable_v<KnownKey> && std::is_trivially_destructible_v<KnownKey>);

void KeyCache::Free::operator()(KnownKey* entries) const { std::free(entries); }

KeyCache::KeyCache(std::size_t max_keys)
    : mask_(std::bit_ceil(std::max<std::size_t>(1, (max_keys + kWays - 1) / kWays)) - 1),
      entries_(static_cast<KnownKey*>(std::calloc(capacity(), sizeof(KnownKey)))) {
  if (!entries_) throw std::bad_alloc();
}

KnownKey* KeyCache::insert(const store::KeyHash& hash) {
  KnownKey* set = set_of(hash);
  KnownKey* chosen = nullptr;
  for (KnownKey* entry = set; entry != set + kWays; ++entry) {
    if (entry->queue != KnownKey::kNoQueue || entry->lease != KnownKey::kNoLease) continue;
    if (chosen == nullptr || entry->tag == 0 || (chosen->tag != 0 && entry->level.at < chosen->level.at)) {
      chosen = entry;
    }
  }
  if (chosen == nullptr) return nullptr;
  if (chosen->tag == 0) {
    ++size_;
  } else {
    ++dropped_;
  }
  if (chosen->level.more != 0) free_tiers_.push_back(chosen->level.more);
  *chosen = KnownKey{};
  chosen->tag = tag_of(hash);
  return chosen;
}

void KeyCache::set_level(KnownKey& key, const Level& level, std::span<const limiter::TierState> states) {
  const std::uint32_t before = key.level.more;
  key.level = level;
  key.level.more = before;
  if (level.kind != Level::Kind::tier || states.size() < 2) return;
  if (before == 0 && free_tiers_.empty()) {
    if (tiers_.size() > capacity() / kKeysPerTiers) return;
    free_tiers_.push_back(static_cast<std::uint32_t>(tiers_.size()));
    tiers_.emplace_back();
  }
  if (before == 0) {
    key.level.more = free_tiers_.back();
    free_tiers_.pop_back();
  }
  std::copy(states.begin(), states.end(), tiers_[key.level.more].begin());
  key.level.kind = Level::Kind::tiers;
}

}  // namespace allowd::prefilter
