// SPDX-License-Identifier: MIT
//
// What this host knows of keys, in a table of fixed size: four entries make a set, and a key that finds its
// set full takes the place of the one of which the store has not spoken for longest. All that is lost with an
// entry is that the store will be asked once more.
//
// The table is zeroed memory that the kernel hands out page by page as keys arrive: it never has to grow.
//
// Entries with a queue or a lease stay until it is gone. The states of several tiers are kept beside the
// table, for as many keys as have room there.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "agent/prefilter/level.h"
#include "agent/store/key_hash.h"

namespace allowd::prefilter {

struct KnownKey {
  static constexpr std::uint32_t kNoQueue = 0;
  static constexpr std::uint32_t kNoLease = 0;

  std::uint64_t tag = 0;  // the half of the hash that does not choose the set; 0: free
  Level level;
  std::uint32_t definition = 0;  // Definition::digest of whose level it is
  std::uint32_t epoch = 0;       // of the shard's time
  std::uint32_t queue = kNoQueue;
  std::uint32_t lease = kNoLease;
  std::uint32_t held_us = 0;    // from level.at on, costs of held_cost and above are not asked
  std::uint32_t held_cost = 0;  // saturated
  std::uint8_t shard = 0;
  std::uint8_t vain_questions = 0;  // in a row that were refused although the bound had said yes
};
static_assert(sizeof(KnownKey) <= 80);

class KeyCache {
 public:
  // Room for max_keys, rounded up to a power of two.
  explicit KeyCache(std::size_t max_keys);

  // Valid until the next insert.
  [[nodiscard]] KnownKey* find(const store::KeyHash& hash) {
    const std::uint64_t tag = tag_of(hash);
    KnownKey* const set = set_of(hash);
    for (KnownKey* entry = set; entry != set + kWays; ++entry) {
      if (entry->tag == tag) return entry;
    }
    return nullptr;
  }
  // An entry for a key that has none, fresh but for its tag; null: all of its set have to stay.
  [[nodiscard]] KnownKey* insert(const store::KeyHash& hash);

  // The states of all tiers, of a level of kind `tiers`; empty for others.
  [[nodiscard]] std::span<const limiter::TierState> tiers_of(const KnownKey& key) const {
    if (key.level.kind != Level::Kind::tiers) return {};
    return tiers_[key.level.more];
  }
  // Makes `level` the key's, with all tiers' states if there are several and there is room for them.
  void set_level(KnownKey& key, const Level& level, std::span<const limiter::TierState> states);

  [[nodiscard]] std::size_t capacity() const { return kWays * (mask_ + 1); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  static constexpr std::size_t kWays = 4;
  struct Free {
    void operator()(KnownKey* entries) const;
  };

  [[nodiscard]] KnownKey* set_of(const store::KeyHash& hash) {
    return entries_.get() + kWays * (hash.low & mask_);
  }
  [[nodiscard]] static std::uint64_t tag_of(const store::KeyHash& hash) {
    return hash.high != 0 ? hash.high : 1;
  }

  using Tiers = std::array<limiter::TierState, limiter::Definition::kMaxTiers>;
  static constexpr std::size_t kKeysPerTiers = 4;

  std::size_t mask_;
  std::deque<Tiers> tiers_{1};  // the first is nobody's
  std::vector<std::uint32_t> free_tiers_;
  std::size_t size_ = 0;
  std::uint64_t dropped_ = 0;
  std::unique_ptr<KnownKey[], Free> entries_;
};

}  // namespace allowd::prefilter
