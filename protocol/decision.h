// SPDX-License-Identifier: MIT
//
// The answer to one query, as it stands on the wire.
//
// Ownership  `tier` is borrowed: from the limit's definition on the agent's side, from the received bytes on
//            the client's.
// Units      Times are microseconds, everything else whole permits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace allowd::protocol {

enum class Verdict : std::uint8_t { ok, limited, never, shadow, unavailable };
enum class Source : std::uint8_t { local, store, fallback };

inline constexpr std::size_t kVerdicts = 5;
inline constexpr std::size_t kSources = 3;

inline constexpr std::int64_t kNever = -1;  // retry_after_us of what can never pass

struct Decision {
  bool allowed = false;
  std::uint64_t limit = 0;           // capacity of the deciding tier
  std::uint64_t remaining = 0;       // whole permits left
  std::int64_t retry_after_us = 0;   // 0 when allowed, kNever when waiting does not help
  std::uint64_t reset_after_us = 0;  // until full
  Verdict verdict = Verdict::ok;
  Source source = Source::local;
  std::string_view tier = {};
  std::uint64_t window_us = 0;      // a window's length, or a bucket's time from empty to full
  std::uint64_t more_after_us = 0;  // the retry that a cost of remaining + 1 would get; 0 when full

  bool operator==(const Decision&) const = default;
};

inline constexpr std::array<std::string_view, kVerdicts> kVerdictNames = {"ok", "limited", "never", "shadow",
                                                                          "unavailable"};
inline constexpr std::array<std::string_view, kSources> kSourceNames = {"local", "store", "fallback"};

[[nodiscard]] constexpr std::string_view name_of(Verdict verdict) {
  return kVerdictNames[static_cast<std::size_t>(verdict)];
}
[[nodiscard]] constexpr std::string_view name_of(Source source) {
  return kSourceNames[static_cast<std::size_t>(source)];
}

}  // namespace allowd::protocol
