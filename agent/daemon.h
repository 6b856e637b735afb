// SPDX-License-Identifier: MIT
//
// The daemon, as a list of what it is made of.
#pragma once

#include <string>

#include "agent/config/config.h"

namespace allowd {

// Serves until SIGTERM or SIGINT. `config_path` is what a reload reads; empty: nothing. Returns the process's
// exit code, and has logged why if that is not 0. To be called before anything else uses libuv's threads.
[[nodiscard]] int serve(config::Config config, const std::string& config_path);

// The files that a config names belong to it: without them it is as wrong as with a misspelt key.
[[nodiscard]] Failure check_files(const config::Config& config, const std::string& config_path);

}  // namespace allowd
