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

KnownKey* KeyCache::find(const store::KeyHash& hash) {
  KnownKey* set = set_of(hash);
  for (std::size_t i = 0; i < kWays; ++i) {
    if (set[i].tag == tag_of(hash)) return &set[i];
  }
  return nullptr;
}

KnownKey* KeyCache::insert(const store::KeyHash& hash) {
  KnownKey* set = set_of(hash);
  KnownKey* chosen = nullptr;
  for (KnownKey* entry = set; entry != set + kWays; ++entry) {
    if (entry->queue != KnownKey::kNoQueue) continue;
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
  *chosen = KnownKey{};
  chosen->tag = tag_of(hash);
  return chosen;
}

}  // namespace allowd::prefilter
