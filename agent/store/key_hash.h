// SPDX-License-Identifier: MIT
//
// What stands in for (limit, key) in tables: 128 bits under a secret, so that entries have one size and
// nobody outside can aim collisions. It is made once for a query and handed on; who keeps several things of
// one key salts it.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>

namespace allowd::store {

struct KeyHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  // Stands for another thing of the same key: which one, the salt says. Other salts, other hashes; salts that
  // outsiders choose have to be made under the secret.
  [[nodiscard]] constexpr KeyHash salted(std::uint64_t salt) const { return {low ^ salt, high + salt}; }

  auto operator<=>(const KeyHash&) const = default;
};

using HashSecret = std::array<std::uint64_t, 4>;  // random, drawn at start

class KeyHasher {
 public:
  explicit KeyHasher(const HashSecret& secret);

  // Of a limit, a tag, or of whatever else sets keys apart: a seed, or a salt. Names that applications choose
  // cannot be made to collide either.
  [[nodiscard]] std::uint64_t seed(std::string_view text) const;
  // Of a key under a seed: equal keys of two limits are apart.
  [[nodiscard]] static KeyHash hash(std::uint64_t seed, std::string_view key);

 private:
  std::array<unsigned char, 192> secret_{};
};

// Under no secret: of keys that nobody chose in order to harm, as in a history that is replayed.
[[nodiscard]] KeyHash hash_openly(std::string_view limit_tag, std::string_view key);

}  // namespace allowd::store
