// SPDX-License-Identifier: MIT
//
// Counts latencies in log-linear buckets: exact below 256 ns, then 128 buckets per doubling, so that a value
// read back is within 0.8 % of the one put in. 35 KiB, no allocation while counting.
//
// Units    Nanoseconds in and out. Values from 2^40 ns (18 minutes) on count in the last bucket.
// Threads  One.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <vector>

namespace allowd::bench {

class LatencyHistogram {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  // All values below `below` that no earlier octave holds.
  struct Octave {
    Nanoseconds below;
    std::uint64_t count;
  };

  void add(Nanoseconds latency) noexcept {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(latency.count(), 0));
    ++buckets_[index_of(value)];
    ++count_;
    max_ = std::max(max_, latency);
  }

  void clear() noexcept { *this = LatencyHistogram{}; }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] Nanoseconds max() const noexcept { return max_; }

  // The value that `share` (0 to 1) of all values do not exceed; zero if there are none.
  [[nodiscard]] Nanoseconds quantile(double share) const noexcept;

  // The whole histogram in doublings of one microsecond, empty ends left off.
  [[nodiscard]] std::vector<Octave> octaves() const;

 private:
  static constexpr int kSubBits = 7;  // 128 buckets per doubling
  static constexpr int kValueBits = 40;
  static constexpr std::size_t kBuckets = (kValueBits - kSubBits + 1) << kSubBits;

  static std::size_t index_of(std::uint64_t value) noexcept {
    const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - kSubBits - 1);
    const std::uint64_t index = (static_cast<std::uint64_t>(shift) << kSubBits) + (value >> shift);
    return static_cast<std::size_t>(std::min<std::uint64_t>(index, kBuckets - 1));
  }
  static std::uint64_t middle_of(std::size_t index) noexcept;

  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  Nanoseconds max_{0};
};

}  // namespace allowd::bench
