// SPDX-License-Identifier: MIT
#include "agent/limiter/windows.h"

#include <algorithm>

#include "agent/limiter/arithmetic.h"

namespace allowd::limiter {
namespace {

Failure check(Rate rate) {
  if (rate.count < 1) return Error{Error::Code::bad_request, "the rate must be at least 1 per period"};
  if (rate.period.count() < 1) return Error{Error::Code::bad_request, "the period must be at least 1us"};
  if (rate.count >= kMaxUsed)
    return Error{Error::Code::bad_request, "the rate must be below 2^52 per period"};
  return {};
}

// What `operation` makes of a count, `most` being the capacity: what take and peek would pass is known
// already.
std::int64_t counted(std::int64_t count, Operation operation, std::int64_t cost, std::int64_t most) {
  switch (operation) {
    case Operation::peek: return count;
    case Operation::take: return count + cost;
    case Operation::refund: return cost >= count ? 0 : count - cost;
    case Operation::force: return cost >= most - count ? std::max(count, most) : count + cost;
  }
  return count;
}

bool asks_to_pass(Operation operation) {
  return operation == Operation::take || operation == Operation::peek;
}

}  // namespace

TimePoint aligned_start(TimePoint now, Micros period) { return now - now.time_since_epoch() % period; }

Result<FixedWindow> FixedWindow::make(Rate rate, Align align) {
  if (auto problem = check(rate)) return std::move(*problem);
  FixedWindow window;
  window.rate_ = rate;
  window.align_ = align;
  return window;
}

Decision FixedWindow::apply(WindowState& state, Operation operation, std::int64_t cost, TimePoint now) const {
  const std::int64_t most = rate_.count;
  now = std::max(now, state.start);
  const bool is_running =
      now < state.start + rate_.period && (state.before > 0 || state.count > 0 || state.start > TimePoint{});
  std::int64_t count = is_running ? state.count : 0;
  TimePoint start = state.start;
  if (!is_running) start = align_ == Align::clock ? aligned_start(now, rate_.period) : now;

  Verdict verdict = Verdict::ok;
  if (asks_to_pass(operation)) {
    if (cost > most)
      verdict = Verdict::never;
    else if (cost > 0 && cost > most - count)
      verdict = Verdict::limited;
  }
  const bool has_nothing_to_return = operation == Operation::refund && !is_running;
  if (verdict == Verdict::ok && cost > 0 && !has_nothing_to_return) {
    const std::int64_t after = counted(count, operation, cost, most);
    if (after != count) {
      count = after;
      state = {1, count, start};
    }
  }

  const Micros left = start + rate_.period - now;
  Decision decision;
  decision.verdict = verdict;
  decision.capacity = most;
  decision.remaining = std::max<std::int64_t>(0, most - count);
  decision.window = rate_.period;
  if (count > 0) decision.reset_after = decision.more_after = left;
  if (verdict == Verdict::never) decision.retry_after = kNever;
  if (verdict == Verdict::limited) decision.retry_after = left;
  return decision;
}

Result<SlidingWindow> SlidingWindow::make(Rate rate) {
  if (auto problem = check(rate)) return std::move(*problem);
  const auto tick = finest_tick(
      rate.period, [&](Micros step) { return Wide{rate.count} * (rate.period / step) < kMaxUsed; });
  if (!tick) {
    return Error{
        Error::Code::bad_request,
        "the window is too large to be counted exactly: count * period in seconds must stay below 2^52"};
  }
  SlidingWindow window;
  window.rate_ = rate;
  window.tick_ = *tick;
  return window;
}

void SlidingWindow::advance(WindowState& state, TimePoint now) const {
  const TimePoint start = aligned_start(now, rate_.period);
  if (start <= state.start) return;  // the same window, or a clock that stepped back
  const bool is_next = start == state.start + rate_.period;
  state = {is_next ? state.count : 0, 0, start};
}

bool SlidingWindow::passes(const WindowState& state, std::int64_t cost, TimePoint now) const {
  const std::int64_t ticks = rate_.period / tick_;
  const std::int64_t into = std::max(Micros{0}, now - state.start) / tick_;
  return cost <= rate_.count - state.count &&
         Wide{state.before} * (ticks - into) <= Wide{rate_.count - state.count - cost} * ticks;
}

TimePoint SlidingWindow::passes_at(const WindowState& state, std::int64_t cost) const {
  const std::int64_t ticks = rate_.period / tick_;
  // How many ticks before the end of the window in which `weighing` weighs there is room for it beside
  // `rest`.
  const auto left = [&](std::int64_t weighing, std::int64_t room) {
    return static_cast<std::int64_t>(std::min<Wide>(ticks, Wide{room} * ticks / weighing));
  };
  const std::int64_t room = rate_.count - state.count - cost;
  if (room >= 0) return state.start + rate_.period - left(state.before, room) * tick_;
  return state.start + 2 * rate_.period - left(state.count, rate_.count - cost) * tick_;
}

Decision SlidingWindow::describe(const WindowState& state, std::int64_t cost, Verdict verdict,
                                 TimePoint now) const {
  const std::int64_t ticks = rate_.period / tick_;
  const std::int64_t into = (now - state.start) / tick_;
  const Wide room = Wide{rate_.count} * ticks - Wide{state.before} * (ticks - into);
  Decision decision;
  decision.verdict = verdict;
  decision.capacity = rate_.count;
  decision.window = rate_.period;
  if (room > 0) {
    decision.remaining = std::max<std::int64_t>(0, static_cast<std::int64_t>(room / ticks) - state.count);
  }
  if (state.count > 0) {
    decision.reset_after = state.start + 2 * rate_.period - now;
  } else if (state.before > 0) {
    decision.reset_after = state.start + rate_.period - now;
  }
  if (decision.reset_after.count() > 0) {
    decision.more_after = passes_at(state, decision.remaining + 1) - now;
  }
  if (verdict == Verdict::never) decision.retry_after = kNever;
  if (verdict == Verdict::limited) decision.retry_after = passes_at(state, cost) - now;
  return decision;
}

Decision SlidingWindow::apply(WindowState& state, Operation operation, std::int64_t cost,
                              TimePoint now) const {
  WindowState current = state;
  advance(current, now);
  now = std::max(now, current.start);
  if (asks_to_pass(operation)) {
    if (cost > rate_.count) return describe(current, cost, Verdict::never, now);
    if (cost > 0 && !passes(current, cost, now)) return describe(current, cost, Verdict::limited, now);
  }
  const std::int64_t after = counted(current.count, operation, cost, rate_.count);
  if (after != current.count) {
    current.count = after;
    state = current;
  }
  return describe(current, cost, Verdict::ok, now);
}

}  // namespace allowd::limiter
