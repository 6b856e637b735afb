// SPDX-License-Identifier: MIT
#include "agent/stats/turn_times.h"

#include <algorithm>

namespace allowd::stats {
namespace {

using namespace std::chrono_literals;

constexpr TurnTimes::Micros kLong = 1ms;

std::int64_t second_of(TurnTimes::Time time) {
  return std::chrono::floor<std::chrono::seconds>(time.time_since_epoch()).count();
}

double seconds(TurnTimes::Micros micros) { return static_cast<double>(micros.count()) / 1e6; }

}  // namespace

void TurnTimes::Longest::record(std::int64_t second, Micros turn) {
  if (second != second_) {
    before_ = second == second_ + 1 ? running_ : 0us;
    running_ = 0us;
    second_ = second;
  }
  running_ = std::max(running_, turn);
  ever_ = std::max(ever_, turn);
}

TurnTimes::Micros TurnTimes::Longest::recent(std::int64_t second) const {
  if (second == second_) return std::max(running_, before_);
  return second == second_ + 1 ? running_ : 0us;
}

void TurnTimes::record(Time end, Micros wall, Micros processor) {
  const std::int64_t second = second_of(end);
  ++turns_;
  wall_.record(second, wall);
  processor_.record(second, processor);
  if (wall > kLong) ++long_by_wall_;
  if (processor > kLong) ++long_by_processor_;
}

void TurnTimes::collect(std::vector<Metric>& metrics) const {
  const auto count = [&](const char* name, const char* help, std::uint64_t value) {
    metrics.push_back({name, Metric::Kind::counter, help, static_cast<double>(value)});
  };
  const auto gauge = [&](const char* name, const char* help, Micros value) {
    metrics.push_back({name, Metric::Kind::gauge, help, seconds(value)});
  };
  const std::int64_t second = second_of(now_());
  count("loop_turns_total", "Turns of the event loop.", turns_);
  count("loop_long_turns_total", "Turns that held the loop for more than a millisecond.", long_by_wall_);
  count("loop_long_turns_cpu_total", "Of these, turns that used more than a millisecond of processor time.",
        long_by_processor_);
  gauge("loop_longest_turn_seconds", "The longest turn since the start.", wall_.ever());
  gauge("loop_longest_turn_cpu_seconds",
        "The most processor time of a turn of more than a millisecond since the start.", processor_.ever());
  gauge("loop_recent_longest_turn_seconds", "The longest turn of the running second and the one before.",
        wall_.recent(second));
  gauge("loop_recent_longest_turn_cpu_seconds",
        "The most processor time of a turn of more than a millisecond, of these two seconds.",
        processor_.recent(second));
}

}  // namespace allowd::stats
