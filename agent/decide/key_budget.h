// SPDX-License-Identifier: MIT
//
// How many new keys a limit admits on this host: a token bucket of so many a second.
//
// A flood begins with the first key that finds no place and is over once none has been turned away for a
// minute; its beginning is logged.
//
// Ownership  Of the LimitTable, by the limit's name, so that a reload changes the rate and keeps the use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "agent/config/config.h"
#include "agent/limiter/token_bucket.h"
#include "agent/store/store.h"

namespace allowd::decide {

class KeyBudget final : public store::KeyBudget {
 public:
  explicit KeyBudget(std::string limit) : limit_(std::move(limit)) {}

  // From 1 to config::kMostNewKeysPerSecond.
  void set_rate(std::int64_t keys_per_second);
  [[nodiscard]] bool admit(store::SteadyTime now) override;

  // Queries that were turned over to the overflow.
  [[nodiscard]] std::uint64_t refused() const { return refused_; }
  [[nodiscard]] std::uint64_t floods() const { return floods_; }

 private:
  void note_refusal(store::SteadyTime now);

  std::string limit_;
  std::optional<limiter::TokenBucket> bucket_;
  limiter::BucketState state_;
  std::optional<store::SteadyTime> flooded_until_;
  std::uint64_t refused_ = 0;
  std::uint64_t floods_ = 0;
};

}  // namespace allowd::decide
