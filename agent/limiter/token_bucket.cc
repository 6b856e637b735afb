// SPDX-License-Identifier: MIT
#include "agent/limiter/token_bucket.h"

#include <algorithm>
#include <numeric>

namespace allowd::limiter {
namespace {

// Use in another unit: whole permits and the rest apart, the rest rounded up, so that conversion never mints.
// Redis's Lua does the same in doubles: a rest whose product would pass 2^53 counts as a whole permit there
// and hence here.
std::int64_t convert(std::int64_t used, std::int64_t from, std::int64_t to) {
  if (from == to) return used;
  const std::int64_t whole = used / from;
  const std::int64_t rest = used % from;
  const Wide scaled = Wide{rest} * to;
  const bool is_exact_in_doubles = scaled < (Wide{1} << 53);
  const Wide rest_units = is_exact_in_doubles ? (scaled + from - 1) / from : Wide{to};
  return static_cast<std::int64_t>(std::min<Wide>(Wide{whole} * to + rest_units, kMaxUsed));
}

}  // namespace

Result<TokenBucket> TokenBucket::make(Rate rate, std::int64_t burst) {
  if (rate.count < 1) return Error{Error::Code::bad_request, "the rate must be at least 1 per period"};
  if (rate.period.count() < 1) return Error{Error::Code::bad_request, "the period must be at least 1us"};
  if (burst < 1) return Error{Error::Code::bad_request, "the burst must be at least 1"};
  TokenBucket bucket;
  bucket.rate_ = rate;
  bucket.burst_ = burst;
  const auto units_at = [&](Micros tick) {
    return rate.period / tick / std::gcd(rate.count, rate.period / tick);
  };
  const auto tick = finest_tick(rate.period, [&](Micros step) {
    const std::int64_t unit = units_at(step);
    const std::int64_t refill = rate.count / std::gcd(rate.count, rate.period / step);
    const Wide full = Wide{burst} * unit;
    if (refill >= kMaxUsed || full >= kMaxUsed) return false;
    // In ticks also products with a part of one, and the time to full, have to be exact.
    return step.count() == 1 ||
           (Wide{refill} * step.count() < kMaxUsed && full / refill * step.count() < kMaxUsed);
  });
  if (!tick) {
    return Error{
        Error::Code::bad_request,
        "rate and burst are too large to be counted exactly: burst * period in seconds, after dividing "
        "count and period by their greatest common divisor, must stay below 2^52"};
  }
  bucket.tick_ = *tick;
  bucket.unit_ = units_at(*tick);
  bucket.refill_ = rate.count / std::gcd(rate.count, rate.period / *tick);
  bucket.full_ = burst * bucket.unit_;
  bucket.window_ = bucket.time_to_full(bucket.full_);
  bucket.quickest_return_ = rate.period / rate.count / *tick * *tick;
  return bucket;
}

bool TokenBucket::is_empty(std::int64_t used, Micros since) const {
  return used == 0 || Wide{used} * tick_.count() <= Wide{since.count()} * refill_;
}

void TokenBucket::advance(BucketState& state, TimePoint now) const {
  if (!state.exists()) {
    state = {unit_, 0, now};
    return;
  }
  if (state.unit != unit_) {
    state.used = convert(state.used, state.unit, unit_);
    state.unit = unit_;
  }
  if (now <= state.last) return;  // a clock that steps back grants nothing
  const Micros since = now - state.last;
  const bool is_exact = tick_.count() == 1;
  const std::int64_t ticks = is_exact ? since.count() : since / tick_;
  const Wide back = Wide{ticks} * refill_;
  state.used = back >= state.used ? 0 : state.used - static_cast<std::int64_t>(back);
  if (is_exact) {
    state.last = now;
    return;
  }
  state.last += ticks * tick_;
  // A full bucket refills nothing: its ticks begin with the next charge.
  if (is_empty(state.used, now - state.last)) state = {unit_, 0, now};
}

Decision TokenBucket::apply(BucketState& state, Operation operation, std::int64_t cost, TimePoint now) const {
  BucketState current = state;
  advance(current, now);
  const Micros since = std::max(Micros{0}, now - current.last);  // of the tick under way
  switch (operation) {
    case Operation::peek:
    case Operation::take: {
      const Verdict verdict = verdict_of(current.used, cost);
      if (verdict != Verdict::ok) return describe(current.used, cost, verdict, since);
      if (operation == Operation::peek || cost == 0) break;
      current.used += cost * unit_;
      state = current;
      break;
    }
    case Operation::refund: {
      if (!state.exists() || cost == 0) break;
      const Wide units = Wide{cost} * unit_;
      current.used = units >= current.used ? 0 : current.used - static_cast<std::int64_t>(units);
      if (is_empty(current.used, since)) current = {unit_, 0, std::max(now, current.last)};
      state = current;
      break;
    }
    case Operation::force: {
      // Both with the part of a tick that has passed: else that part would be lost or minted.
      const auto is_drained = [&](std::int64_t used) {
        return Wide{used - full_} * tick_.count() >= Wide{since.count()} * refill_;
      };
      if (cost == 0 || is_drained(current.used)) break;  // nothing left to take
      const std::int64_t wanted = can_hold(cost) ? current.used + cost * unit_ : kMaxUsed;
      if (is_drained(wanted)) {
        current = {unit_, full_, std::max(now, current.last)};
      } else {
        current.used = wanted;
      }
      state = current;
      break;
    }
  }
  return describe(current.used, cost, Verdict::ok, std::max(Micros{0}, now - current.last));
}

}  // namespace allowd::limiter
