// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <variant>

#include "agent/command_line.h"
#include "agent/config/config.h"
#include "agent/daemon.h"
#include "agent/log/setup.h"
#include "agent/loop/loop.h"
#include "agent/random_bits.h"
#include "agent/replay/replay.h"

namespace allowd {
namespace {

int fail(const std::string& why) {
  std::fprintf(stderr, "allowd: %s\n", why.c_str());
  return EXIT_FAILURE;
}

int check(const config::Config& config, const std::string& config_path) {
  if (auto problem = check_files(config, config_path)) return fail(problem->message);
  std::cout << config::to_toml(config);
  return EXIT_SUCCESS;
}

int replay_history(const config::Config& config, const CommandLine::Replay& wanted) {
  const replay::Options options{
      .limit = wanted.limit,
      .store = wanted.store,
      .random = {random_bits(), random_bits()},
      .shows_progress = ::isatty(STDERR_FILENO) != 0 && ::isatty(STDOUT_FILENO) == 0};
  if (auto problem = replay::run(config, options, std::cin, std::cout, std::cerr))
    return fail(problem->message);
  return EXIT_SUCCESS;
}

int run(int argc, char** argv) {
  const auto wanted = read_command_line(argc, argv);
  if (const int* code = std::get_if<int>(&wanted)) return *code;
  const auto& line = std::get<CommandLine>(wanted);
  auto config = line.config_path.empty() ? Result<config::Config>(config::Config{})
                                         : config::load_config(line.config_path);
  if (!config) return fail(config.error().message);
  switch (line.command) {
    case CommandLine::Command::check: return check(*config, line.config_path);
    case CommandLine::Command::replay: return replay_history(*config, line.replay);
    case CommandLine::Command::serve: break;
  }
  return serve(std::move(*config), line.config_path);
}

}  // namespace
}  // namespace allowd

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a peer that has gone is an error of a write, not our end
  allowd::log::set_up();
  int code = EXIT_FAILURE;
  try {
    code = allowd::run(argc, argv);
  } catch (const std::exception& problem) {  // out of memory, mostly
    std::fprintf(stderr, "allowd: %s\n", problem.what());
  }
  if (allowd::loop::Loop::has_left_a_thread()) {
    std::fflush(nullptr);
    std::_Exit(code);  // the name server may take longer than whoever waits for this process
  }
  return code;
}
