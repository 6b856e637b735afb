// SPDX-License-Identifier: MIT
#include "agent/store/redis/shard_metrics.h"

#include <algorithm>
#include <string_view>

namespace allowd::store {

void add_shard_metrics(std::span<stats::Metric> sum, std::span<const stats::Metric> more) {
  const auto is_measured = [](std::string_view metric) {
    return metric == "redis_clock_uncertainty_seconds" || metric == "agents_known";
  };
  for (std::size_t i = 0; i < sum.size(); ++i) {
    double& value = sum[i].value;
    value = is_measured(more[i].name) ? std::max(value, more[i].value) : value + more[i].value;
  }
}

}  // namespace allowd::store
