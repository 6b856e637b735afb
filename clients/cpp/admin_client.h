// SPDX-License-Identifier: MIT
//
// Sends commands to the agent's admin socket.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "clients/cpp/problem.h"

namespace allowd::client {

// Runs one command line and returns its answer, less the empty line that ends it. An answer that begins with
// "error: " is a Problem of kind agent_error.
[[nodiscard]] std::optional<Problem> run_admin_command(const std::string& socket_path, std::string_view line,
                                                       std::chrono::microseconds timeout,
                                                       std::string& answer);

}  // namespace allowd::client
