// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/shard_clock.h"

#include <algorithm>
#include <cassert>

namespace allowd::store {
namespace {

constexpr std::int64_t kSlewOneMicroPer = 1000;  // µs

limiter::Micros magnitude(limiter::Micros span) { return span.count() < 0 ? -span : span; }

}  // namespace

void ShardClock::add_sample(SteadyTime sent, SteadyTime received, limiter::TimePoint server) {
  const limiter::Micros round_trip = std::max(received - sent, limiter::Micros{0});
  // Rounded up, and TIME itself is cut off to a microsecond.
  const limiter::Micros uncertainty = round_trip / 2 + limiter::Micros{2};
  if (best_ && best_->uncertainty <= uncertainty) return;
  best_ = Sample{server.time_since_epoch() - (sent.time_since_epoch() + round_trip / 2), uncertainty};
}

limiter::Micros ShardClock::slewed_at(SteadyTime now) const {
  const limiter::Micros allowed = std::max((now - slew_began_) / kSlewOneMicroPer, limiter::Micros{0});
  return std::clamp(slew_, -allowed, allowed);
}

limiter::Micros ShardClock::uncertainty(SteadyTime now) const {
  return uncertainty_ + magnitude(slew_ - slewed_at(now));
}

bool ShardClock::finish_round(SteadyTime now) {
  if (!best_) return false;
  const Sample sample = *best_;
  best_.reset();
  if (!offset_) {
    offset_ = sample.offset;
    slew_ = limiter::Micros{0};
  } else {
    const limiter::Micros current = offset_at(now);
    const limiter::Micros correction = sample.offset - current;
    const bool is_jump = magnitude(correction) > sample.uncertainty + uncertainty(now);
    offset_ = is_jump ? sample.offset : current;
    slew_ = is_jump ? limiter::Micros{0} : correction;
    if (is_jump) ++jumps_;
    slew_began_ = now;
    uncertainty_ = sample.uncertainty;
    return is_jump;
  }
  slew_began_ = now;
  uncertainty_ = sample.uncertainty;
  return false;
}

void ShardClock::forget() {
  best_.reset();
  offset_.reset();
}

limiter::TimePoint ShardClock::at(SteadyTime now) const {
  assert(is_set());
  return limiter::TimePoint{now.time_since_epoch() + offset_at(now)};
}

}  // namespace allowd::store
