// SPDX-License-Identifier: MIT
//
// Permits of one key that were taken from the store ahead, to be granted here.
//
// They are the store's no longer, so every grant from them has been charged; the price is that other agents
// cannot have them meanwhile. So they live for a second at most, what is left goes back, and no more is taken
// than the key's own demand on this host uses up in a tenth of a second.
//
// All agents together then admit at most burst + rate * T in any time T, and one lease per agent more: what
// was taken before T began and is granted within it.
//
// Pure. Units: permits, microseconds of the host's monotonic clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "agent/store/store.h"

namespace allowd::prefilter {

using store::SteadyTime;

class Lease {
 public:
  static constexpr limiter::Micros kLife = std::chrono::seconds(1);
  static constexpr limiter::Micros kSpan = std::chrono::milliseconds(100);  // of demand, in a lease
  // A key that is granted so much in kSpan is hot.
  static constexpr std::int64_t kHot = 8;

  // How much `granted` permits within `span` foretell for kSpan.
  [[nodiscard]] static std::int64_t demand(std::int64_t granted, limiter::Micros span);

  explicit Lease(std::int64_t demand) : demand_(demand), wanted_(demand) {}

  // Grants `cost` out of what is left, if it suffices.
  [[nodiscard]] bool take(std::int64_t cost, SteadyTime now);
  [[nodiscard]] std::int64_t left(SteadyTime now) const;
  // Permits that the store has granted, at most what next_size asked for.
  void add(std::int64_t permits, SteadyTime now);

  // Whether it is time to ask for more: less is left than half of what the demand will need, or of what may
  // be outstanding if that is less.
  [[nodiscard]] bool runs_low(SteadyTime now) const { return 2 * left(now) < wanted_; }
  // How much to ask for, so that never more than `most` is outstanding; measures the demand anew.
  [[nodiscard]] std::int64_t next_size(std::int64_t most, SteadyTime now);

  // What has outlived its second, to be given back once.
  [[nodiscard]] std::int64_t expire(SteadyTime now);
  // All that is left, however old; there is nothing left then.
  [[nodiscard]] std::int64_t drain();
  [[nodiscard]] SteadyTime next_expiry() const;
  // Nothing left, and nothing asked for of late.
  [[nodiscard]] bool is_over(SteadyTime now) const { return count_ == 0 && now >= idle_after_; }

 private:
  struct Batch {
    std::int64_t left = 0;
    SteadyTime until{};
  };
  static constexpr std::size_t kMaxBatches = 4;

  std::array<Batch, kMaxBatches> batches_{};  // the oldest first
  std::size_t count_ = 0;
  std::int64_t demand_;  // expected in kSpan
  std::int64_t wanted_;  // of that, what may be outstanding
  std::int64_t granted_ = 0;
  SteadyTime counted_from_{};  // granted_
  SteadyTime idle_after_{};
};

}  // namespace allowd::prefilter
