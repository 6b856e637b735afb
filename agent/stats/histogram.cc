// SPDX-License-Identifier: MIT
#include "agent/stats/histogram.h"

#include <algorithm>
#include <cmath>

namespace allowd::stats {

std::size_t Histogram::bucket_of(std::uint64_t value) {
  constexpr std::uint64_t kLinear = std::uint64_t{1} << kSubBits;
  if (value < kLinear) return static_cast<std::size_t>(value);
  const auto exponent = static_cast<unsigned>(std::bit_width(value)) - 1;
  const std::uint64_t sub = (value >> (exponent - kSubBits)) - kLinear;
  return static_cast<std::size_t>(((exponent - kSubBits + 1) << kSubBits) + sub);
}

std::uint64_t Histogram::upper_edge(std::size_t bucket) {
  constexpr std::size_t kLinear = std::size_t{1} << kSubBits;
  if (bucket < kLinear) return bucket;
  const auto shift = static_cast<unsigned>(bucket >> kSubBits) - 1;
  const std::uint64_t sub = bucket & (kLinear - 1);
  return ((kLinear + sub + 1) << shift) - 1;
}

void Histogram::record(std::int64_t micros, std::uint64_t times) {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << kMaxExponent) - 1;
  const std::uint64_t value = std::min(static_cast<std::uint64_t>(std::max<std::int64_t>(0, micros)), kMost);
  buckets_[bucket_of(value)] += times;
  count_ += times;
  sum_ += value * times;
  max_ = std::max(max_, value);
}

std::uint64_t Histogram::quantile(double share) const {
  if (count_ == 0) return 0;
  const auto rank =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_))));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    seen += buckets_[bucket];
    if (seen >= rank) return std::min(upper_edge(bucket), max_);
  }
  return max_;
}

std::uint64_t Histogram::count_below_power(unsigned exponent) const {
  const std::size_t end = std::min(kBuckets, bucket_of(std::uint64_t{1} << std::min(exponent, kMaxExponent)));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < end; ++bucket) seen += buckets_[bucket];
  return seen;
}

}  // namespace allowd::stats
