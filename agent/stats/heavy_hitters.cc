// SPDX-License-Identifier: MIT
#include "agent/stats/heavy_hitters.h"

#include <algorithm>
#include <cstring>

namespace allowd::stats {

void KeptName::keep(std::string_view bytes) {
  is_cut_ = bytes.size() > kKeptBytes;
  size_ = static_cast<std::uint8_t>(std::min(bytes.size(), kKeptBytes));
  if (size_ > 0) std::memcpy(bytes_.data(), bytes.data(), size_);
}

void HeavyHitters::clear() {
  index_.fill(kNone);
  size_ = 0;
  total_ = 0;
  smallest_ = 0;
  cursor_ = kCounters;
}

std::uint64_t HeavyHitters::smallest_count() const {
  std::uint64_t smallest = counters_[0].count;
  for (const Counter& counter : counters_) smallest = std::min(smallest, counter.count);
  return smallest;
}

std::uint64_t HeavyHitters::floor() const { return size_ < kCounters ? 0 : smallest_count(); }

HeavyHitters::Entry HeavyHitters::entry(std::size_t place) const {
  const Counter& counter = counters_[place];
  const Details& details = details_[place];
  return {counter.id, counter.count, details.error, details.limit, details.key};
}

std::optional<std::size_t> HeavyHitters::find(std::uint64_t id) const {
  for (std::size_t at = home_of(id); index_[at] != kNone; at = after(at)) {
    if (counters_[index_[at]].id == id) return index_[at];
  }
  return std::nullopt;
}

std::size_t HeavyHitters::take_counter(std::uint64_t id) {
  std::size_t place = size_;
  std::uint64_t error = 0;
  if (size_ < kCounters) {
    ++size_;
  } else {
    place = find_smallest();
    error = counters_[place].count;
    take_out_of_index(place);
  }
  counters_[place] = {id, error + 1};
  details_[place].error = error;
  std::size_t at = home_of(id);
  while (index_[at] != kNone) at = after(at);
  index_[at] = static_cast<std::uint16_t>(place);
  return place;
}

std::size_t HeavyHitters::find_smallest() {
  for (;;) {
    while (cursor_ < kCounters) {
      const std::size_t place = cursor_++;  // it is about to count more
      if (counters_[place].count == smallest_) return place;
    }
    smallest_ = smallest_count();
    cursor_ = 0;
  }
}

// Closes the gap, so that a probe may go on ending at the first free slot (Knuth, TAOCP 3, 6.4, algorithm R).
void HeavyHitters::take_out_of_index(std::size_t place) {
  std::size_t gap = home_of(counters_[place].id);
  while (index_[gap] != place) gap = after(gap);
  for (std::size_t at = after(gap); index_[at] != kNone; at = after(at)) {
    const std::size_t from_home = (at - home_of(counters_[index_[at]].id)) & (kSlots - 1);
    const std::size_t from_gap = (at - gap) & (kSlots - 1);
    if (from_home < from_gap) continue;  // it would come to stand before its home
    index_[gap] = index_[at];
    gap = at;
  }
  index_[gap] = kNone;
}

}  // namespace allowd::stats
