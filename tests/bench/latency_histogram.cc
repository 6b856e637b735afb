// SPDX-License-Identifier: MIT

#include "latency_histogram.h"

#include <cmath>

namespace allowd::bench {

std::uint64_t LatencyHistogram::middle_of(std::size_t index) noexcept {
  constexpr std::size_t kExact = std::size_t{2} << kSubBits;  // up to here a bucket is one nanosecond
  if (index < kExact) {
    return index;
  }
  const std::size_t shift = (index >> kSubBits) - 1;
  const std::uint64_t lower = static_cast<std::uint64_t>(index - (shift << kSubBits)) << shift;
  return lower + (std::uint64_t{1} << (shift - 1));
}

LatencyHistogram::Nanoseconds LatencyHistogram::quantile(double share) const noexcept {
  if (count_ == 0) {
    return Nanoseconds{0};
  }
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t index = 0; index < kBuckets; ++index) {
    seen += buckets_[index];
    if (seen >= wanted && seen > 0) {
      return std::min(Nanoseconds{static_cast<std::int64_t>(middle_of(index))}, max_);
    }
  }
  return max_;
}

std::vector<LatencyHistogram::Octave> LatencyHistogram::octaves() const {
  std::vector<Octave> found;
  Nanoseconds below = std::chrono::microseconds{1};
  std::uint64_t in_octave = 0;
  const auto close_octave = [&] {
    if (in_octave > 0 || !found.empty()) {
      found.push_back({below, in_octave});
    }
    in_octave = 0;
    below *= 2;
  };
  for (std::size_t index = 0; index < kBuckets; ++index) {
    while (middle_of(index) >= static_cast<std::uint64_t>(below.count())) {
      close_octave();
    }
    in_octave += buckets_[index];
  }
  close_octave();
  while (!found.empty() && found.back().count == 0) {
    found.pop_back();
  }
  return found;
}

}  // namespace allowd::bench
