// SPDX-License-Identifier: MIT
#include "agent/limiter/counter.h"

#include <algorithm>
#include <chrono>

namespace allowd::limiter {

Result<Counter> Counter::make(Rate rate) {
  auto window = FixedWindow::make(rate, FixedWindow::Align::first);
  if (!window) return std::move(window.error());
  Counter counter;
  counter.rate_ = {rate.count, std::chrono::ceil<std::chrono::milliseconds>(rate.period)};
  return counter;
}

Decision Counter::describe(std::int64_t count, Micros left, Operation operation, std::int64_t cost) const {
  const std::int64_t most = rate_.count;
  const std::int64_t wanted = operation == Operation::peek ? count + std::min(cost, kMaxUsed) : count;
  Decision decision;
  const bool asks = operation == Operation::take || operation == Operation::peek;
  if (asks && cost > most) {
    decision.verdict = Verdict::never;
  } else if (asks && cost > 0 && wanted > most) {
    decision.verdict = Verdict::limited;
  }
  decision.capacity = most;
  decision.remaining = std::max<std::int64_t>(0, most - count);
  decision.window = rate_.period;
  if (count > 0) decision.reset_after = decision.more_after = left;
  if (decision.verdict == Verdict::never) decision.retry_after = kNever;
  if (decision.verdict == Verdict::limited) decision.retry_after = left;
  return decision;
}

Decision Counter::apply(WindowState& state, Operation operation, std::int64_t cost, TimePoint now) const {
  now = std::max(now, state.start);
  const bool is_running = state.count > 0 && now < state.start + rate_.period;
  std::int64_t count = is_running ? state.count : 0;
  const TimePoint start = is_running ? state.start : now;
  const bool can_pass = operation == Operation::force || cost <= rate_.count;
  const bool hits = (operation == Operation::take && can_pass) || operation == Operation::force;
  if (hits && cost > 0) {
    count = std::min(kMaxUsed, count + std::min(cost, kMaxUsed));
    state = {0, count, start};
  }
  return describe(count, start + rate_.period - now, operation, cost);
}

}  // namespace allowd::limiter
