// SPDX-License-Identifier: MIT
#include "agent/store/redis/topology/key_groups.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

namespace allowd::store {

std::uint16_t slot_of_tag(std::string_view tag) {
  constexpr std::uint32_t kPolynomial = 0x1021, kTopBit = 0x8000;
  std::uint32_t crc = 0;
  for (const char c : tag) {
    crc ^= static_cast<std::uint32_t>(static_cast<unsigned char>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & kTopBit) != 0 ? crc << 1 ^ kPolynomial : crc << 1;
  }
  return static_cast<std::uint16_t>(crc % kSlots);
}

KeyGroups::KeyGroups() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr std::uint32_t kPart = kSlots / kGroups;
  std::array<std::uint32_t, kGroups> distances;
  distances.fill(kSlots);
  for (std::uint32_t number = 0; number < 0x1000; ++number) {
    const std::array<char, kTagSize> tag = {kDigits[number >> 8], kDigits[number >> 4 & 0xf],
                                            kDigits[number & 0xf]};
    const std::uint16_t slot = slot_of_tag({tag.data(), tag.size()});
    const std::uint32_t group = slot / kPart, at = slot % kPart;
    const std::uint32_t distance = at < kPart / 2 ? kPart / 2 - at : at - kPart / 2;
    if (distance >= distances[group]) continue;
    distances[group] = distance;
    tags_[group] = tag;
    slots_[group] = slot;
  }
}

std::uint32_t KeyGroups::group_of(std::string_view limit_tag, std::string_view key, std::size_t rank) {
  XXH64_state_t state;
  XXH64_reset(&state, 0);  // unkeyed: every agent must find the same group
  XXH64_update(&state, limit_tag.data(), limit_tag.size());
  XXH64_update(&state, key.data(), key.size());
  // The groups lie in the order of their slots. Steps of the golden ratio leave the most even gaps, whatever
  // the number of ranks (Knuth, "The Art of Computer Programming" 3, 6.4: Fibonacci hashing).
  constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;  // in 1/2^64
  constexpr int kShift = 64 - std::bit_width(kGroups - 1);
  return static_cast<std::uint32_t>((XXH64_digest(&state) + (kGoldenRatio * rank >> kShift)) % kGroups);
}

void KeyGroups::append_redis_key(std::string& out, std::string_view prefix, std::uint32_t group,
                                 std::string_view limit_tag, std::string_view key) const {
  out.append(prefix).append(":{").append(tags_[group].data(), kTagSize).append("}:");
  out.append(limit_tag).append(key);
}

}  // namespace allowd::store
