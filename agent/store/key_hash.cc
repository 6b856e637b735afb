// SPDX-License-Identifier: MIT
#include "agent/store/key_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace allowd::store {

KeyHasher::KeyHasher(const HashSecret& secret) {
  XXH3_generateSecret(secret_.data(), secret_.size(), secret.data(), sizeof secret);
}

std::uint64_t KeyHasher::seed(std::string_view text) const {
  return XXH3_64bits_withSecret(text.data(), text.size(), secret_.data(), secret_.size());
}

KeyHash KeyHasher::hash(std::uint64_t seed, std::string_view key) {
  const auto digest = XXH3_128bits_withSeed(key.data(), key.size(), seed);
  return {digest.low64, digest.high64};
}

KeyHash hash_openly(std::string_view limit_tag, std::string_view key) {
  return KeyHasher::hash(XXH3_64bits(limit_tag.data(), limit_tag.size()), key);
}

}  // namespace allowd::store
