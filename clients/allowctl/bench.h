// SPDX-License-Identifier: MIT
//
// `allowctl bench`: how fast the agent on this host answers, as its clients see it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace allowd::allowctl {

struct BenchOptions {
  std::string limit = "bench";
  std::string rate;         // non-empty: the limit is defined inline
  std::uint64_t burst = 0;  // with `rate`; 0: the rate's count
  std::uint64_t connections = 1;
  std::uint64_t depth = 1;  // queries in flight per connection
  std::uint64_t keys = 1;
  std::uint64_t cost = 1;
  std::uint64_t count = 0;  // queries in all; 0: for `duration`
  std::chrono::microseconds duration{3'000'000};
  std::chrono::microseconds timeout{1'000'000};  // without any reply
  bool as_json = false;
};

// Prints the figures; returns an exit code.
[[nodiscard]] int run_bench(const std::string& socket_path, const BenchOptions& options);

}  // namespace allowd::allowctl
