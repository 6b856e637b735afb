// SPDX-License-Identifier: MIT
#include "agent/store/memory/key_table.h"

#include <algorithm>
#include <bit>

namespace allowd::store {
namespace {

constexpr std::size_t kKeysPerSegment = 2048;
// At `kMaxLoad` we grow a segment; the map's own limit lies above and is never reached.
constexpr double kMaxLoad = 0.9;
constexpr float kMapsOwnMaxLoad = 0.95F;
constexpr std::size_t kGrowthFactors = 16;

std::size_t segments_for(std::size_t max_keys) {
  return std::bit_ceil(std::max<std::size_t>(1, max_keys / kKeysPerSegment));
}

}  // namespace

KeyTable::KeyTable(std::size_t max_keys)
    : max_keys_(max_keys), segments_(segments_for(max_keys)), segment_mask_(segments_.size() - 1) {
  for (Segment& segment : segments_) segment.max_load_factor(kMapsOwnMaxLoad);
}

bool KeyTable::has_room(const KeyHash& hash, limiter::TimePoint now) {
  if (is_full()) sweep_segment(segment_of(hash), now);
  return !is_full();
}

KeyEntry* KeyTable::insert(const KeyHash& hash, limiter::TimePoint now) {
  if (!has_room(hash, now)) return nullptr;
  Segment& segment = segment_of(hash);
  const auto room = static_cast<std::size_t>(static_cast<double>(segment.bucket_count()) * kMaxLoad);
  if (segment.size() >= room) grow(segment);
  ++size_;
  return &segment[hash];
}

void KeyTable::grow(Segment& segment) {
  constexpr std::size_t kFewestBuckets = 8;
  const auto index = static_cast<std::size_t>(&segment - segments_.data());
  const std::size_t buckets = segment.bucket_count();
  // By 1.25 to 1.34.
  const std::size_t more = buckets / 4 + buckets * (index % kGrowthFactors) / 160;
  longest_growth_step_ = std::max(longest_growth_step_, segment.size());
  segment.rehash(std::max(kFewestBuckets, buckets + more));
}

void KeyTable::erase(const KeyHash& hash) { size_ -= segment_of(hash).erase(hash); }

void KeyTable::sweep(std::size_t segments, limiter::TimePoint now) {
  for (std::size_t i = 0; i < std::min(segments, segments_.size()); ++i) {
    sweep_segment(segments_[next_swept_], now);
    next_swept_ = (next_swept_ + 1) % segments_.size();
  }
}

void KeyTable::sweep_segment(Segment& segment, limiter::TimePoint now) {
  for (auto entry = segment.begin(); entry != segment.end();) {
    if (entry.value().leaves_at > now) {
      ++entry;
      continue;
    }
    entry = segment.erase(entry);
    --size_;
  }
  // Give memory back once most of it is empty.
  if (segment.bucket_count() > 64 && segment.size() * 4 < segment.bucket_count()) segment.rehash(0);
}

}  // namespace allowd::store
