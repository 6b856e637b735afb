// SPDX-License-Identifier: MIT
//
// The metrics of several servers as those of one.
#pragma once

#include <span>
#include <vector>

#include "agent/stats/metric.h"

namespace allowd::store {

// Adds one server's metrics to those of others; both as Shard::collect has them. Of what a server measures,
// and does not count, the largest is of interest.
void add_shard_metrics(std::span<stats::Metric> sum, std::span<const stats::Metric> more);

}  // namespace allowd::store
