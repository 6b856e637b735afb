// SPDX-License-Identifier: MIT
#include "agent/stats/registry.h"

namespace allowd::stats {

DecisionCounters& Registry::decisions_of(std::string_view limit, std::string_view tier) {
  DecisionCounters*& known = by_label_[{std::string(limit), std::string(tier)}];
  if (known == nullptr) known = &decisions_.emplace_back(limit, tier);
  return *known;
}

std::vector<Metric> Registry::metrics() const {
  std::vector<Metric> all;
  for (const MetricSource* source : sources_) source->collect(all);
  return all;
}

}  // namespace allowd::stats
