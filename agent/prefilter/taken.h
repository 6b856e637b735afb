// SPDX-License-Identifier: MIT
//
// What a force has taken: no more than there was, which its decision does not tell.
//
// Pure.
#pragma once

#include <span>
#include <vector>

#include "agent/store/store.h"

namespace allowd::prefilter {

// Of each tier of a bucket or tiers, from its states before the force and after it, at that time. Exact where
// the tier is a bucket, whole permits of a window.
[[nodiscard]] std::vector<store::Taken> taken_between(const limiter::Definition& definition,
                                                      std::span<const limiter::TierState> before,
                                                      std::span<const limiter::TierState> after,
                                                      limiter::TimePoint at);

}  // namespace allowd::prefilter
