// SPDX-License-Identifier: MIT
//
// A growth policy for tsl::robin_map: grows by a quarter, so that a table is never much larger than its
// contents, and maps a hash to a bucket by multiplication (Lemire, "Fast random integer generation in an
// interval", 2019), which any table size allows without a division.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace allowd::store {

class GradualGrowth {
 public:
  explicit GradualGrowth(std::size_t& bucket_count) : buckets_(bucket_count) {}

  [[nodiscard]] std::size_t bucket_for_hash(std::size_t hash) const noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((Wide{hash} * buckets_) >> 64);
  }
  [[nodiscard]] std::size_t next_bucket_count() const { return buckets_ < 8 ? 8 : buckets_ + buckets_ / 4; }
  [[nodiscard]] std::size_t max_bucket_count() const { return std::numeric_limits<std::uint32_t>::max(); }
  void clear() noexcept { buckets_ = 0; }

 private:
  std::size_t buckets_;
};

}  // namespace allowd::store
