// SPDX-License-Identifier: MIT
#include "clients/cpp/breaker.h"

namespace allowd::client {

bool Breaker::lets_through(TimePoint now) {
  if (!open_until_) return true;
  if (now < *open_until_) return false;
  // Closed again for whoever comes while the probe is under way.
  open_until_ = now + kOpenFor;
  return true;
}

void Breaker::on_timeout(TimePoint now) {
  if (++timeouts_ >= kTimeoutsToOpen) open_until_ = now + kOpenFor;
}

void Breaker::on_other_end() {
  timeouts_ = 0;
  open_until_.reset();
}

}  // namespace allowd::client
