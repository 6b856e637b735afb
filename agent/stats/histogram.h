// SPDX-License-Identifier: MIT
//
// Counts values in log-linear buckets: eight to an octave, so a quantile is at most 12.5 % too high and never
// too low. The layout of HdrHistogram (Tene), with three significant bits.
//
// Units      Microseconds; larger ones than 2^36 (19 hours) count as that.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace allowd::stats {

class Histogram {
 public:
  void record(std::int64_t micros, std::uint64_t times = 1);

  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::uint64_t sum() const { return sum_; }
  [[nodiscard]] std::uint64_t max() const { return max_; }
  // The upper edge of the bucket that holds the value of this rank; 0 when empty. `share` from 0 to 1.
  [[nodiscard]] std::uint64_t quantile(double share) const;
  // How many values are below 2^exponent. Exact: buckets do not straddle powers of two.
  [[nodiscard]] std::uint64_t count_below_power(unsigned exponent) const;

 private:
  static constexpr unsigned kSubBits = 3;
  static constexpr unsigned kMaxExponent = 36;
  static constexpr std::size_t kBuckets = (kMaxExponent - kSubBits + 2) << kSubBits;

  [[nodiscard]] static std::size_t bucket_of(std::uint64_t value);
  [[nodiscard]] static std::uint64_t upper_edge(std::size_t bucket);

  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
  std::uint64_t max_ = 0;
};

}  // namespace allowd::stats
