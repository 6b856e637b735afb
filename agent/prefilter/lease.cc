// SPDX-License-Identifier: MIT
#include "agent/prefilter/lease.h"

#include <algorithm>

namespace allowd::prefilter {

using limiter::Micros;

std::int64_t Lease::demand(std::int64_t granted, Micros span) {
  constexpr Micros kShortest = std::chrono::milliseconds(1);  // a burst is no rate
  const double share =
      static_cast<double>(kSpan.count()) / static_cast<double>(std::max(span, kShortest).count());
  return static_cast<std::int64_t>(
      std::min(static_cast<double>(granted) * share, static_cast<double>(limiter::kMaxUsed)));
}

bool Lease::take(std::int64_t cost, SteadyTime now) {
  if (cost > left(now)) return false;
  granted_ += cost;
  for (std::size_t i = 0; i < count_ && cost > 0; ++i) {
    if (batches_[i].until <= now) continue;  // expire() gives it back
    const std::int64_t taken = std::min(cost, batches_[i].left);
    batches_[i].left -= taken;
    cost -= taken;
  }
  return true;
}

std::int64_t Lease::left(SteadyTime now) const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (batches_[i].until > now) sum += batches_[i].left;
  }
  return sum;
}

void Lease::add(std::int64_t permits, SteadyTime now) {
  idle_after_ = now + kLife;
  if (permits == 0) return;
  // What is used up makes room; past that the youngest batch takes them in, and ends no later than it would.
  const auto used_up = [](const Batch& batch) { return batch.left == 0; };
  count_ = static_cast<std::size_t>(std::remove_if(batches_.begin(), batches_.begin() + count_, used_up) -
                                    batches_.begin());
  if (count_ == kMaxBatches) {
    batches_.back().left += permits;
  } else {
    batches_[count_++] = {permits, now + kLife};
  }
}

std::int64_t Lease::next_size(std::int64_t most, SteadyTime now) {
  constexpr Micros kLongEnough = std::chrono::milliseconds(20);
  const Micros span = now - counted_from_;
  if (counted_from_ == SteadyTime{}) {
    counted_from_ = now;
    granted_ = 0;
  } else if (span >= kLongEnough) {
    demand_ = (demand_ + demand(granted_, span) + 1) / 2;
    counted_from_ = now;
    granted_ = 0;
  }
  // Were it the demand alone, a hotter key would run low, and ask, at every grant.
  wanted_ = std::min(demand_, most);
  return std::max<std::int64_t>(0, wanted_ - left(now));
}

std::int64_t Lease::expire(SteadyTime now) {
  std::int64_t unused = 0;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (batches_[i].until <= now) {
      unused += batches_[i].left;
    } else if (batches_[i].left > 0) {
      batches_[kept++] = batches_[i];
    }
  }
  count_ = kept;
  return unused;
}

std::int64_t Lease::drain() {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count_; ++i) sum += batches_[i].left;
  count_ = 0;
  return sum;
}

SteadyTime Lease::next_expiry() const { return count_ > 0 ? batches_.front().until : idle_after_; }

}  // namespace allowd::prefilter
