// SPDX-License-Identifier: MIT
#include "clients/cpp/breaker.h"

#include <algorithm>

namespace allowd::client {

bool Breaker::lets_through(TimePoint now) {
  if (!open_until_) return true;
  if (now < *open_until_) return false;
  // Closed again for whoever comes while the probe is under way.
  open_until_ = now + kOpenFor;
  return true;
}

std::chrono::microseconds Breaker::probe_in(TimePoint now) const {
  if (!open_until_) return kOpenFor;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(*open_until_ - now);
  return std::max(left, std::chrono::microseconds{1});
}

void Breaker::on_timeout(TimePoint now) {
  if (++timeouts_ >= kTimeoutsToOpen) open_until_ = now + kOpenFor;
}

void Breaker::on_other_end() {
  timeouts_ = 0;
  open_until_.reset();
}

}  // namespace allowd::client
