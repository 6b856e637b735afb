// SPDX-License-Identifier: MIT
//
// What allowctl prints, and the exit codes that scripts rely on.
#pragma once

#include <string>

#include "clients/cpp/client.h"

namespace allowd::allowctl {

enum Exit : int { kAllowed = 0, kDenied = 1, kUsage = 2, kNoAgent = 3, kTimedOut = 4, kAgentError = 5 };

[[nodiscard]] Exit exit_code(const client::Problem& problem);
[[nodiscard]] std::string to_line(const client::Problem& problem);

// "allowed  9 of 10 left, full in 100 ms (local)"
[[nodiscard]] std::string to_line(const client::Decision& decision);
[[nodiscard]] std::string to_json(const client::Decision& decision);

// Microseconds in the unit that reads best: "100 ms", "16 min 40 s".
[[nodiscard]] std::string print_duration(std::uint64_t micros);

}  // namespace allowd::allowctl
