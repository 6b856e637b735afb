// SPDX-License-Identifier: MIT
//
// What asks to pass, and what has.
#pragma once

#include "agent/limiter/definition.h"

namespace allowd::prefilter {

[[nodiscard]] inline bool asks_to_pass(limiter::Operation operation, std::int64_t cost) {
  return operation == limiter::Operation::take && cost > 0;
}

// Whether the store has charged: a shadow limit's refusal has not, a passed question with a shadow tier has.
[[nodiscard]] inline bool has_passed(const limiter::Definition& definition,
                                     const limiter::Decision& decision) {
  const bool is_watched =
      decision.verdict == limiter::Verdict::shadow && definition.tiers()[decision.tier].shadow;
  return decision.verdict == limiter::Verdict::ok || is_watched;
}

}  // namespace allowd::prefilter
