// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/permission_probe.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <utility>

#include "agent/store/redis/codec/server_error.h"

namespace allowd::store {
namespace {

// Behind the command and the key.
struct ProbedCommand {
  std::string_view command;
  std::array<std::string_view, 2> rest;
  std::size_t rest_size;
};

constexpr std::array<ProbedCommand, 10> kProbedCommands{{
    {"MGET", {}, 0},
    {"GET", {}, 0},
    {"PTTL", {}, 0},
    {"SET", {"", "?"}, 2},        // no such option
    {"SETEX", {"0", ""}, 2},      // no such time
    {"SETRANGE", {"-1", ""}, 2},  // no such offset
    {"EXPIRE", {"?"}, 1},         // no number
    {"PEXPIRE", {"?"}, 1},
    {"INCRBY", {"?"}, 1},
    {"DEL", {}, 0},  // of a key of its own that nobody has, see below
}};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

struct Findings {
  std::vector<std::string> missing;
  std::size_t open = kProbedCommands.size();
  std::function<void(const std::vector<std::string>&)> done;
};

}  // namespace

std::vector<std::string_view> commands_of_script() {
  std::vector<std::string_view> commands;
  for (const ProbedCommand& probe : kProbedCommands) commands.push_back(probe.command);
  return commands;
}

void find_missing_permissions(Connection& connection, std::string_view key,
                              std::function<void(const std::vector<std::string>&)> done) {
  const auto findings = std::make_shared<Findings>();
  findings->done = std::move(done);
  // Below the same prefix and hash tag, but none that a limit could have: those go on with a kind's letter.
  const std::string own = std::string(key.substr(0, key.find("}:") + 2)) + "?";
  for (const ProbedCommand& probe : kProbedCommands) {
    ByteBuffer& out = connection.outbox();
    write_command_header(out, 2 + probe.rest_size);
    write_bulk(out, probe.command);
    write_bulk(out, std::string_view(own));
    for (std::size_t i = 0; i < probe.rest_size; ++i) write_bulk(out, probe.rest[i]);
    connection.expect([findings, command = probe.command, own](const Reply& reply) {
      if (reply == nullptr) return;
      if (is_error(reply) && read_error(text_of(reply)).kind == ServerError::not_permitted) {
        // "... to run the 'mget' command" against "... to access one of the keys"
        const bool is_command = text_of(reply).find("run the") != std::string_view::npos;
        const std::string rule = is_command ? "+" + lower(command) : "~" + own.substr(0, own.find('{')) + "*";
        auto& missing = findings->missing;
        if (std::find(missing.begin(), missing.end(), rule) == missing.end()) missing.push_back(rule);
      }
      if (--findings->open == 0) findings->done(findings->missing);
    });
  }
  connection.flush();
}

}  // namespace allowd::store
