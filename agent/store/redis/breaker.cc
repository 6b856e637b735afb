// SPDX-License-Identifier: MIT
#include "agent/store/redis/breaker.h"

#include <algorithm>

namespace allowd::store {

using limiter::Micros;

bool Breaker::lets_through(SteadyTime now) {
  if (state_ == State::closed) return true;
  if (state_ == State::probing || now < next_probe_at_) return false;
  state_ = State::probing;
  // Counted from its beginning: a probe that is lost in silence has cost that much already.
  schedule_probe(now);
  return true;
}

void Breaker::on_success() {
  state_ = State::closed;
  failures_ = 0;
  wait_ = kFirstWait;
  last_timeout_.reset();
}

bool Breaker::on_failure(Failure why, SteadyTime now) {
  // What was under way when it opened says nothing new.
  if (state_ != State::closed || ++failures_ < kFailuresToOpen) return false;
  if (why == Failure::not_permitted) wait_ = kWaitForPermission;
  state_ = State::open;
  ++opens_;
  schedule_probe(now);
  return true;
}

bool Breaker::on_timeout(Micros waited, SteadyTime now) {
  if (waited < kShortestPatience) return false;
  if (last_timeout_ && now - *last_timeout_ < kBetweenTimeouts) return false;
  last_timeout_ = now;
  return on_failure(Failure::timed_out, now);
}

void Breaker::on_probe_failed(Failure why, SteadyTime now) {
  if (state_ != State::probing) return;
  state_ = State::open;
  if (why != Failure::not_permitted) return;
  wait_ = kWaitForPermission;
  schedule_probe(now);
}

Micros Breaker::next_probe_in(SteadyTime now) const {
  if (state_ == State::closed) return Micros{1};
  const Micros left = next_probe_at_ - now;
  // A probe that outlasts its wait: the next one follows as soon as it has ended.
  const Micros least = state_ == State::probing ? Micros{std::chrono::milliseconds(1)} : kProbeIsDue;
  return std::max(left, least);
}

void Breaker::schedule_probe(SteadyTime now) {
  const Micros cut{std::uniform_int_distribution<std::int64_t>(0, wait_.count() / 2)(random_)};
  next_probe_at_ = now + wait_ - cut;
  wait_ = wait_ == kWaitForPermission ? kLongestWait : std::min(2 * wait_, kLongestWait);
}

std::string_view name_of(Breaker::State state) {
  switch (state) {
    case Breaker::State::closed: return "closed";
    case Breaker::State::open: return "open";
    case Breaker::State::probing: return "probing";
  }
  return "";
}

}  // namespace allowd::store
