// SPDX-License-Identifier: MIT
//
// One number that operators may look at, and the interface of whoever has some.
//
// Names follow Prometheus: no prefix here, counters end in `_total`, seconds and bytes are base units.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace allowd::stats {

struct Metric {
  enum class Kind : std::uint8_t { counter, gauge };
  std::string name;
  Kind kind = Kind::counter;
  std::string help;
  double value = 0;
};

class MetricSource {
 public:
  virtual ~MetricSource() = default;
  virtual void collect(std::vector<Metric>& metrics) const = 0;
};

}  // namespace allowd::stats
