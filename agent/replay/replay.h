// SPDX-License-Identifier: MIT
//
// Runs histories through a limit at the times that they state: to see what a limit would have done with
// yesterday's traffic, and to hold every store to the same answers.
//
// Blocking: this is a command of its own, without a loop.
#pragma once

#include <array>
#include <cstdint>
#include <istream>
#include <ostream>
#include <string>

#include "agent/config/config.h"

namespace allowd::replay {

// Longer ones are not understood.
inline constexpr std::size_t kMaxLineBytes = 64 * 1024;

struct Options {
  std::string limit;                      // of the config
  std::string store = "memory";           // or a Redis URL
  std::array<std::uint64_t, 2> random{};  // for the Redis prefix
  bool shows_progress = false;            // a line that counts, for a terminal
};

// One JSON line in, one out. Stops at the first line that cannot be understood, and names its number.
// `report` gets a summary at the end, and progress on the way if that is wanted.
[[nodiscard]] Failure run(const config::Config& config, const Options& options, std::istream& in,
                          std::ostream& out, std::ostream& report);

}  // namespace allowd::replay
