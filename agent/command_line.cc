// SPDX-License-Identifier: MIT
#include "agent/command_line.h"

#include <CLI/CLI.hpp>

namespace allowd {

std::variant<CommandLine, int> read_command_line(int argc, char** argv) {
  CommandLine line;
  CLI::App app{
      "allowd: a rate-limit agent for this host.\n"
      "Applications ask it over a Unix socket, in MessagePack-RPC: may this key do one more?\n\n"
      "Examples:\n"
      "  allowd                                   memory store, limits defined by the applications\n"
      "  allowd --config /etc/allowd/allowd.toml  named limits, and Redis if the file says so\n"
      "  allowd check --config allowd.toml        print the effective config, or what is wrong with it\n"
      "  allowd replay --config allowd.toml --limit api < history.jsonl\n\n"
      "Then ask it:  allowctl allow api user-1\n"};
  app.set_version_flag("--version", std::string("allowd ") + ALLOWD_VERSION);
  app.add_option("--config", line.config_path,
                 "the configuration, TOML; without one: memory store, no named limits")
      ->type_name("FILE");

  auto* check_command =
      app.add_subcommand("check", "Checks a configuration and prints it with every default");
  check_command->add_option("--config", line.config_path, "the configuration to check")->type_name("FILE");

  auto* replay_command = app.add_subcommand(
      "replay",
      "Runs a history through one limit, at the times that it states.\n"
      "Reads JSON lines {\"t\": us, \"key\": \"k\", \"cost\": 1, \"op\": \"allow\"} from standard input (op: "
      "allow,\n"
      "peek, refund, force, or limit with a `limit` table that replaces the definition from there on) and "
      "writes\n"
      "each back with the decision's fields.\n\n"
      "Example:\n  echo '{\"t\": 0, \"key\": \"k\"}' | allowd replay --config allowd.toml --limit api");
  replay_command->add_option("--config", line.config_path, "where the limit is defined")
      ->type_name("FILE")
      ->required();
  replay_command->add_option("--limit", line.replay.limit, "its name")->type_name("NAME")->required();
  replay_command
      ->add_option("--store", line.replay.store,
                   "memory, or a Redis URL (rediss:// with the config's [redis.tls]): under a random prefix, "
                   "deleted at the end")
      ->type_name("memory|redis://...")
      ->default_val("memory");
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {  // among them the wish for help
    return app.exit(problem);
  }
  if (check_command->parsed()) line.command = CommandLine::Command::check;
  if (replay_command->parsed()) line.command = CommandLine::Command::replay;
  return line;
}

}  // namespace allowd
