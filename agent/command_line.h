// SPDX-License-Identifier: MIT
//
// What the daemon is asked for on its command line.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

namespace allowd {

struct CommandLine {
  enum class Command : std::uint8_t { serve, check, replay };
  struct Replay {
    std::string limit;
    std::string store;  // "memory", or a Redis URL
  };

  Command command = Command::serve;
  std::string config_path;  // empty: none
  Replay replay;
};

// The exit code instead when there is nothing to do but to leave: help and version were printed, or what is
// wrong.
[[nodiscard]] std::variant<CommandLine, int> read_command_line(int argc, char** argv);

}  // namespace allowd
