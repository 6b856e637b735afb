// SPDX-License-Identifier: MIT
#include "agent/stats/turn_times.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace allowd::stats {
namespace {

using namespace std::chrono_literals;

struct Recorder {
  TurnTimes::Time now{10s};
  TurnTimes turns{[this] { return now; }};

  void record(TurnTimes::Time end, TurnTimes::Micros wall, TurnTimes::Micros processor) {
    turns.record(end, wall, processor);
    now = end;
  }
  double metric(const std::string& name) const {
    std::vector<Metric> all;
    turns.collect(all);
    for (const Metric& metric : all) {
      if (metric.name == name) return metric.value;
    }
    FAIL("there is no such metric: " << name);
    return 0;
  }
};

TEST_CASE("turn times: a turn of a millisecond is not a long one, one of a microsecond more is") {
  Recorder recorder;
  recorder.record(TurnTimes::Time{10s}, 1000us, 1000us);
  CHECK(recorder.metric("loop_turns_total") == 1);
  CHECK(recorder.metric("loop_long_turns_total") == 0);
  recorder.record(TurnTimes::Time{10s}, 1001us, 1000us);
  CHECK(recorder.metric("loop_long_turns_total") == 1);
  CHECK(recorder.metric("loop_long_turns_cpu_total") == 0);
  recorder.record(TurnTimes::Time{10s}, 1001us, 1001us);
  CHECK(recorder.metric("loop_turns_total") == 3);
  CHECK(recorder.metric("loop_long_turns_total") == 2);
  CHECK(recorder.metric("loop_long_turns_cpu_total") == 1);
}

TEST_CASE("turn times: the longest by wall and by processor need not be one turn's") {
  Recorder recorder;
  recorder.record(TurnTimes::Time{10s}, 9000us, 10us);
  recorder.record(TurnTimes::Time{10s}, 3000us, 2500us);
  CHECK(recorder.metric("loop_longest_turn_seconds") == 0.009);
  CHECK(recorder.metric("loop_longest_turn_cpu_seconds") == 0.0025);
}

TEST_CASE("turn times: what is recent is of the running second or of the one before") {
  Recorder recorder;
  recorder.record(TurnTimes::Time{10s}, 5000us, 4000us);
  recorder.record(TurnTimes::Time{11s}, 2000us, 0us);
  CHECK(recorder.metric("loop_recent_longest_turn_seconds") == 0.005);
  CHECK(recorder.metric("loop_recent_longest_turn_cpu_seconds") == 0.004);
  recorder.record(TurnTimes::Time{12s}, 1us, 0us);
  CHECK(recorder.metric("loop_recent_longest_turn_seconds") == 0.002);
  CHECK(recorder.metric("loop_recent_longest_turn_cpu_seconds") == 0);
  CHECK(recorder.metric("loop_longest_turn_seconds") == 0.005);
}

TEST_CASE("turn times: a loop that turned long ago has no recent turn") {
  Recorder recorder;
  recorder.record(TurnTimes::Time{10s}, 5000us, 4000us);
  recorder.now = TurnTimes::Time{11999999us};
  CHECK(recorder.metric("loop_recent_longest_turn_seconds") == 0.005);
  recorder.now = TurnTimes::Time{12s};
  CHECK(recorder.metric("loop_recent_longest_turn_seconds") == 0);
  recorder.record(TurnTimes::Time{20s}, 7us, 0us);  // nor does what is older come back
  CHECK(recorder.metric("loop_recent_longest_turn_seconds") == 0.000007);
}

}  // namespace
}  // namespace allowd::stats
