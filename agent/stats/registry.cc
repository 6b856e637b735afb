// SPDX-License-Identifier: MIT
#include "agent/stats/registry.h"

namespace allowd::stats {

DecisionCounters& Registry::decisions_of(std::string_view limit, std::string_view tier) {
  for (DecisionCounters& counters : decisions_) {
    if (counters.limit() == limit && counters.tier() == tier) return counters;
  }
  return decisions_.emplace_back(limit, tier);
}

std::vector<Metric> Registry::metrics() const {
  std::vector<Metric> all;
  for (const MetricSource* source : sources_) source->collect(all);
  return all;
}

}  // namespace allowd::stats
