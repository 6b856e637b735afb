// SPDX-License-Identifier: MIT
//
// What a server answers instead of deciding: counted by kind, and remembered where asking again is pointless
// for a while, since only a person can give a permission.
//
// Pure: times are arguments.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "agent/store/redis/codec/server_error.h"
#include "agent/store/store.h"

namespace allowd::store {

class ServerTroubles {
 public:
  static constexpr std::size_t kShapes = 4;  // of limits: one may need a permission that others do not

  explicit ServerTroubles(std::uint64_t random_seed) : random_(random_seed) {}

  void count(ServerError kind);
  // Scripts for limits of that shape are refused: they are for 30 s to 60 s.
  void forbid(std::size_t shape, SteadyTime now);
  [[nodiscard]] bool is_forbidden(std::size_t shape, SteadyTime now) const {
    return now < forbidden_until_[shape];
  }
  // Always the same metrics in the same order.
  void collect(std::vector<stats::Metric>& metrics) const;

 private:
  std::mt19937_64 random_;
  std::array<SteadyTime, kShapes> forbidden_until_{};
  std::uint64_t busy_ = 0;
  std::uint64_t no_memory_ = 0;
  std::uint64_t cannot_persist_ = 0;
  std::uint64_t not_permitted_ = 0;
  std::uint64_t wrong_server_ = 0;
};

}  // namespace allowd::store
