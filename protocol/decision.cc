// SPDX-License-Identifier: MIT
#include "protocol/decision.h"

#include <array>

namespace allowd::protocol {

std::string_view name_of(Verdict verdict) {
  static constexpr std::array<std::string_view, kVerdicts> kNames = {"ok", "limited", "never", "shadow",
                                                                     "unavailable"};
  return kNames[static_cast<std::size_t>(verdict)];
}

std::string_view name_of(Source source) {
  static constexpr std::array<std::string_view, kSources> kNames = {"local", "store", "fallback"};
  return kNames[static_cast<std::size_t>(source)];
}

}  // namespace allowd::protocol
