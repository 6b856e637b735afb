// SPDX-License-Identifier: MIT
//
// How keys are laid out over the slots of a Redis Cluster: in groups, each in one slot, so that one script
// may ask about many keys of a group. The fewer groups, the more keys a script finds to ask about; the more
// groups, the more evenly they are shared out.
//
// A key's slot is the CRC16 of what stands in braces, modulo 16,384 (Redis Cluster specification, "Hash
// tags"; the CRC is CRC-16/XMODEM: polynomial 0x1021, begins at 0, not reflected). All slots are as many
// equal parts as there are groups, and a group's tag is, of all three-digit hexadecimal numbers, the first of
// those whose slots are nearest to the middle of its part: however many nodes share the slots out evenly,
// each gets an even share of the groups. This is part of what agents of all versions share: OPERATING.md has
// vectors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace allowd::store {

inline constexpr std::uint32_t kSlots = 16'384;

// The slot of a key whose hash tag this is.
[[nodiscard]] std::uint16_t slot_of_tag(std::string_view tag);

class KeyGroups {
 public:
  static constexpr std::uint32_t kGroups = 64;

  KeyGroups();

  // The group of a key under its limit. Of ranks below 34 different ones, each far from those of lower ranks.
  [[nodiscard]] static std::uint32_t group_of(std::string_view limit_tag, std::string_view key,
                                              std::size_t rank = 0);

  [[nodiscard]] std::uint16_t slot(std::uint32_t group) const { return slots_[group]; }
  // "<prefix>:{0a7}:n3:api:user-1". No two pairs of a limit and a key share one.
  void append_redis_key(std::string& out, std::string_view prefix, std::uint32_t group,
                        std::string_view limit_tag, std::string_view key) const;

 private:
  static constexpr std::size_t kTagSize = 3;

  std::array<std::array<char, kTagSize>, kGroups> tags_{};
  std::array<std::uint16_t, kGroups> slots_{};
};

}  // namespace allowd::store
