// SPDX-License-Identifier: MIT
//
// What the registry holds, in the forms that people and machines read.
#pragma once

#include <string>

#include "agent/stats/registry.h"
#include "protocol/value.h"

namespace allowd::stats {

// The tree behind `stats` and `stats json`:
// {decisions: {limit: {"verdict/source": count}}, latency_us: {source: {...}}, <metric>: number, ...}. Tiers
// stand as limit/tier; a name with a blank, quote, slash or control character is quoted.
[[nodiscard]] protocol::Value to_value(const Registry& registry);

// Prometheus's text format 0.0.4: names begin with allowd_, times are seconds.
[[nodiscard]] std::string to_prometheus(const Registry& registry, std::string_view version);

// The hottest keys, by queries and by refusals: a heading and a line each. Names that were cut end in dots.
[[nodiscard]] std::string top_to_text(const HotKeys& hot_keys, std::size_t rows, HotKeys::Time now);

// One `name value` line each.
[[nodiscard]] std::string to_text(const Registry& registry);

}  // namespace allowd::stats
