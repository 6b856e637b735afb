// SPDX-License-Identifier: MIT
//
// What every key has used, in a table that never grows at one blow.
//
// The table is cut into segments of about two thousand keys by some bits of the key's hash; each is a
// robin_map that grows by a quarter to a third when it is nine tenths full. So the longest step moves one
// segment's entries, some tens of microseconds, however many keys there are, and an entry costs 56 bytes at a
// load between 0.67 and 0.9. Segments fill alike; that each grows by a factor of its own keeps them from all
// growing in the same turn.
//
// Units      Sizes are entries.
// Errors     A full table says so; it never evicts on its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "agent/limiter/definition.h"
#include "agent/store/key_hash.h"
#include "agent/store/memory/gradual_growth.h"
#include "tsl/robin_map.h"

namespace allowd::store {

struct KeyEntry {
  limiter::TierState state;
  limiter::TimePoint leaves_at{};  // full since a minute then: forgetting it changes no answer
};

class KeyTable {
 public:
  explicit KeyTable(std::size_t max_keys);

  // The key's entry, or null. Valid until the next insert or sweep.
  [[nodiscard]] KeyEntry* find(const KeyHash& hash) {
    Segment& segment = segment_of(hash);
    const auto found = segment.find(hash);
    return found == segment.end() ? nullptr : &found.value();
  }
  // Whether a key that is not there could be added, after sweeping its segment if need be.
  [[nodiscard]] bool has_room(const KeyHash& hash, limiter::TimePoint now);
  // Adds a key that is not there; null when there is no room.
  [[nodiscard]] KeyEntry* insert(const KeyHash& hash, limiter::TimePoint now);
  void erase(const KeyHash& hash);

  // Drops entries that have left from the next `segments` segments, going round.
  void sweep(std::size_t segments, limiter::TimePoint now);

  [[nodiscard]] std::size_t size() const { return size_; }
  // How many more keys fit.
  [[nodiscard]] std::size_t room() const {
    const std::size_t taken = size_ + places_elsewhere_;
    return taken < max_keys_ ? max_keys_ - taken : 0;
  }
  [[nodiscard]] bool is_full() const { return room() == 0; }
  // Something kept beside the table, in place of so many entries, has changed its size.
  void take_places(std::size_t now, std::size_t before) { places_elsewhere_ += now - before; }
  [[nodiscard]] std::size_t max_keys() const { return max_keys_; }
  [[nodiscard]] std::size_t segments() const { return segments_.size(); }
  // The most entries that one insert ever had to move.
  [[nodiscard]] std::size_t longest_growth_step() const { return longest_growth_step_; }

 private:
  struct TakeLow {
    std::size_t operator()(const KeyHash& hash) const { return hash.low; }
  };
  using Segment = tsl::robin_map<KeyHash, KeyEntry, TakeLow, std::equal_to<KeyHash>,
                                 std::allocator<std::pair<KeyHash, KeyEntry>>, false, GradualGrowth>;

  [[nodiscard]] Segment& segment_of(const KeyHash& hash) { return segments_[hash.high & segment_mask_]; }
  void grow(Segment& segment);
  void sweep_segment(Segment& segment, limiter::TimePoint now);

  std::size_t max_keys_;
  std::size_t size_ = 0;
  std::size_t places_elsewhere_ = 0;
  std::size_t next_swept_ = 0;
  std::size_t longest_growth_step_ = 0;
  std::vector<Segment> segments_;  // their number is a power of two
  std::size_t segment_mask_;
};

}  // namespace allowd::store
