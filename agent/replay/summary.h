// SPDX-License-Identifier: MIT
//
// What a replayed history came to: how much passed, how much did not, and whom it hit most.
//
// The most refused keys come from a space-saving sketch, so that memory is bounded whatever the file: counts
// are exact up to kKeys refused keys; beyond, a count may be too high by what the sketch says, never too low.
//
// Source     Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and top-k elements in data
// streams",
//            2005.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "agent/limiter/decision.h"

namespace allowd::replay {

class Summary {
 public:
  static constexpr std::size_t kKeys = 10'000;
  static constexpr std::size_t kShown = 10;

  void add(std::string_view key, const limiter::Decision& decision);

  // Lines for people.
  [[nodiscard]] std::string text() const;

 private:
  struct Refusals {
    std::uint64_t count = 0;
    std::uint64_t too_high_by = 0;  // at most
  };

  void add_refusal(const std::string& key);

  std::uint64_t lines_ = 0;
  std::uint64_t allowed_ = 0;
  std::uint64_t limited_ = 0;
  std::uint64_t never_ = 0;
  std::uint64_t shadow_ = 0;  // of the allowed
  std::unordered_map<std::string, Refusals> refused_;
  std::set<std::pair<std::uint64_t, std::string>> by_count_;  // the same keys, the least refused first
};

}  // namespace allowd::replay
