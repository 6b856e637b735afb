// SPDX-License-Identifier: MIT
//
// What stands in for (limit, key) in tables: 128 bits under a secret, so that entries have one size and
// nobody outside can aim collisions.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>

namespace allowd::store {

struct KeyHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const KeyHash&) const = default;
};

using HashSecret = std::array<std::uint64_t, 4>;  // random, drawn at start

class KeyHasher {
 public:
  explicit KeyHasher(const HashSecret& secret);

  // Of a limit's tag, or of whatever else sets keys apart. Names that applications choose cannot be made to
  // collide either.
  [[nodiscard]] std::uint64_t seed(std::string_view text) const;
  // Of a key under a seed: equal keys of two limits are apart.
  [[nodiscard]] static KeyHash hash(std::uint64_t seed, std::string_view key);
  [[nodiscard]] KeyHash hash(std::string_view limit_tag, std::string_view key) const {
    return hash(seed(limit_tag), key);
  }

 private:
  std::array<unsigned char, 192> secret_{};
};

}  // namespace allowd::store
