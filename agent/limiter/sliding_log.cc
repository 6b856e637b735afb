// SPDX-License-Identifier: MIT
#include "agent/limiter/sliding_log.h"

#include <algorithm>
#include <string>

namespace allowd::limiter {

Result<SlidingLog> SlidingLog::make(Rate rate) {
  if (rate.count < 1 || rate.count > kMost) {
    return Error{Error::Code::bad_request, "a sliding_log holds 1 to " + std::to_string(kMost) +
                                               " permits; a sliding_window holds more"};
  }
  if (rate.period.count() < 1) return Error{Error::Code::bad_request, "the period must be at least 1us"};
  SlidingLog log;
  log.rate_ = rate;
  return log;
}

TimePoint SlidingLog::shrinks_to(std::span<const Stamp> stamps, std::int64_t used, std::int64_t most) const {
  for (const Stamp& stamp : stamps) {
    used -= stamp.count;
    if (used <= most) return stamp.at + rate_.period;
  }
  return TimePoint{};
}

Decision SlidingLog::apply(LogState& state, Operation operation, std::int64_t cost, TimePoint now) const {
  const std::int64_t most = rate_.count;
  if (!state.empty()) now = std::max(now, state.back().at);
  LogState stamps;
  std::int64_t used = 0;
  for (const Stamp& stamp : state) {
    if (stamp.at + rate_.period <= now) continue;
    stamps.push_back(stamp);
    used += stamp.count;
  }
  Verdict verdict = Verdict::ok;
  const auto add = [&](std::int64_t count) {
    if (!stamps.empty() && stamps.back().at == now) {
      stamps.back().count += count;
    } else {
      stamps.push_back({now, count});
    }
    used += count;
    state = stamps;
  };
  switch (operation) {
    case Operation::peek:
    case Operation::take:
      if (cost > most) {
        verdict = Verdict::never;
      } else if (cost > 0 && cost > most - used) {
        verdict = Verdict::limited;
      } else if (operation == Operation::take && cost > 0) {
        add(cost);
      }
      break;
    case Operation::force:
      if (const std::int64_t free = std::min(cost, most - used); free > 0) add(free);
      break;
    case Operation::refund: {
      std::int64_t back = std::min(cost, used);
      if (back == 0) break;
      used -= back;
      while (back > 0) {
        const std::int64_t taken = std::min(back, stamps.back().count);
        back -= taken;
        stamps.back().count -= taken;
        if (stamps.back().count == 0) stamps.pop_back();
      }
      state = stamps;
      break;
    }
  }
  Summary summary{.used = used};
  if (used > 0) {
    const std::int64_t remaining = std::max<std::int64_t>(0, most - used);
    summary.all_free = stamps.back().at + rate_.period;
    summary.more_fits = shrinks_to(stamps, used, most - remaining - 1);
    if (verdict == Verdict::limited) summary.cost_fits = shrinks_to(stamps, used, most - cost);
  }
  return describe(summary, verdict, now);
}

Decision SlidingLog::describe(const Summary& summary, Verdict verdict, TimePoint now) const {
  Decision decision;
  decision.verdict = verdict;
  decision.capacity = rate_.count;
  decision.remaining = std::max<std::int64_t>(0, rate_.count - summary.used);
  decision.window = rate_.period;
  if (summary.used > 0) {
    decision.reset_after = summary.all_free - now;
    decision.more_after = summary.more_fits - now;
  }
  if (verdict == Verdict::never) decision.retry_after = kNever;
  if (verdict == Verdict::limited) decision.retry_after = summary.cost_fits - now;
  return decision;
}

}  // namespace allowd::limiter
