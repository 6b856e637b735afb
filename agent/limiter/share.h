// SPDX-License-Identifier: MIT
//
// One of so many equal shares of a limit, to be enforced by each of as many agents that cannot speak to each
// other.
//
// Every tier, window, log or counter becomes a token bucket of the rate and the capacity divided by their
// number: a window cannot be divided so that the parts together are one. All shares together then admit at
// most what the limit's own bucket of that rate and capacity would; and where the capacity is less than the
// number of agents, each may have one permit, so that they exceed it by at most one per agent.
//
// Exact      The rate is exactly the limit's over the number, unless its integers would be too large; then it
//            is the nearest below that can be counted. Capacities are rounded down, but never below 1.
// Kept       Names, order and shadow of the tiers, and the limit's own shadow.
#pragma once

#include <cstdint>

#include "agent/limiter/definition.h"

namespace allowd::limiter {

// More agents than this count as so many.
inline constexpr std::int64_t kMostShares = 100'000;

// Null where a permit would take longer to come back than can be counted (142 years).
[[nodiscard]] DefinitionPtr share_of(const Definition& definition, std::int64_t agents);

}  // namespace allowd::limiter
