// SPDX-License-Identifier: MIT
#include "agent/limiter/token_bucket.h"

#include <algorithm>
#include <numeric>

namespace allowd::limiter {
namespace {

__extension__ using Wide = __int128;

// Most rates refill one unit a microsecond: a branch that is always right is cheaper than a division.
constexpr std::int64_t ceil_div(std::int64_t dividend, std::int64_t divisor) {
  if (divisor == 1) return dividend;
  return dividend / divisor + (dividend % divisor != 0 ? 1 : 0);
}

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
  const std::int64_t divisor = std::gcd(rate.count, rate.period.count());
  bucket.rate_ = rate;
  bucket.burst_ = burst;
  bucket.unit_ = rate.period.count() / divisor;
  bucket.refill_ = rate.count / divisor;
  const Wide full = Wide{burst} * bucket.unit_;
  if (full >= kMaxUsed || bucket.refill_ >= kMaxUsed) {
    return Error{Error::Code::bad_request,
                 "rate and burst are too large to be counted exactly: burst * period in microseconds, after "
                 "dividing count and period by their greatest common divisor, must stay below 2^52"};
  }
  bucket.full_ = static_cast<std::int64_t>(full);
  bucket.window_ = bucket.time_to_full(bucket.full_);
  return bucket;
}

Micros TokenBucket::time_to_full(std::int64_t used) const { return Micros{ceil_div(used, refill_)}; }

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
  const Wide back = Wide{(now - state.last).count()} * refill_;
  state.used = back >= state.used ? 0 : state.used - static_cast<std::int64_t>(back);
  state.last = now;
}

Decision TokenBucket::apply(BucketState& state, Operation operation, std::int64_t cost, TimePoint now) const {
  BucketState current = state;
  advance(current, now);
  switch (operation) {
    case Operation::peek:
    case Operation::take: {
      if (!can_hold(cost)) return describe(current.used, cost, Verdict::never);
      const std::int64_t units = cost * unit_;
      if (cost > 0 && current.used + units > full_) return describe(current.used, cost, Verdict::limited);
      if (operation == Operation::peek || cost == 0) break;
      current.used += units;
      state = current;
      break;
    }
    case Operation::refund: {
      if (!state.exists() || cost == 0) break;
      const Wide units = Wide{cost} * unit_;
      current.used = units >= current.used ? 0 : current.used - static_cast<std::int64_t>(units);
      state = current;
      break;
    }
    case Operation::force: {
      if (cost == 0) break;
      const std::int64_t wanted = can_hold(cost) ? std::min(full_, current.used + cost * unit_) : full_;
      if (wanted <= current.used) break;  // nothing left to take
      current.used = wanted;
      state = current;
      break;
    }
  }
  return describe(current.used, cost, Verdict::ok);
}

Decision TokenBucket::describe(std::int64_t used, std::int64_t cost, Verdict verdict) const {
  Decision decision;
  decision.verdict = verdict;
  decision.capacity = burst_;
  decision.window = window_;
  decision.reset_after = time_to_full(used);
  decision.remaining = used >= full_ ? 0 : (full_ - used) / unit_;
  if (used > 0) {
    decision.more_after = Micros{ceil_div(used + (decision.remaining + 1) * unit_ - full_, refill_)};
  }
  if (verdict == Verdict::never) decision.retry_after = kNever;
  if (verdict == Verdict::limited) {
    decision.retry_after = Micros{ceil_div(used + cost * unit_ - full_, refill_)};
  }
  return decision;
}

}  // namespace allowd::limiter
