// SPDX-License-Identifier: MIT
//
// How long the event loop was held by one turn: the longest since the start and of late, and how many turns
// held it for more than a millisecond, each by the clock on the wall and by the processor time of the loop's
// thread. A turn that is long by the first alone waited for a processor; one that is long by both had too
// much to do.
//
// Units      Microseconds.
// Errors     None. Of a turn whose processor time was not measured, since it was short, none counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "agent/stats/metric.h"

namespace allowd::stats {

class TurnTimes final : public MetricSource {
 public:
  using Micros = std::chrono::duration<std::int64_t, std::micro>;
  using Time = std::chrono::time_point<std::chrono::steady_clock, Micros>;

  // `now` is asked when somebody looks, to tell what is recent from what is long ago.
  explicit TurnTimes(std::function<Time()> now) : now_(std::move(now)) {}

  // A turn that ended at `end`. `processor` is zero if it was not measured.
  void record(Time end, Micros wall, Micros processor);

  void collect(std::vector<Metric>& metrics) const override;

 private:
  // The longest of a running second and of the one before it: who looks once a second misses none.
  class Longest {
   public:
    void record(std::int64_t second, Micros turn);
    [[nodiscard]] Micros ever() const { return ever_; }
    [[nodiscard]] Micros recent(std::int64_t second) const;

   private:
    Micros ever_{0};
    Micros running_{0};
    Micros before_{0};
    std::int64_t second_ = 0;  // the one that runs
  };

  std::function<Time()> now_;
  Longest wall_;
  Longest processor_;
  std::uint64_t turns_ = 0;
  std::uint64_t long_by_wall_ = 0;
  std::uint64_t long_by_processor_ = 0;
};

}  // namespace allowd::stats
