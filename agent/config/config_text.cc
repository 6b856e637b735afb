// SPDX-License-Identifier: MIT
#include <cstdio>
#include <sstream>

#include "agent/config/config.h"
#include "agent/config/units.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace allowd::config {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
      out += escape;
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string octal(std::uint32_t mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%04o", mode);
  return text;
}

}  // namespace

std::string to_toml(const Config& config) {
  std::ostringstream out;
  const AgentConfig& agent = config.agent;
  out << "[agent]\n";
  if (!agent.socket.empty()) out << "socket = " << quoted(agent.socket) << "\n";
  out << "socket_mode = " << quoted(octal(agent.socket_mode)) << "\n";
  if (!agent.socket_group.empty()) out << "socket_group = " << quoted(agent.socket_group) << "\n";
  if (!agent.admin_socket.empty()) out << "admin_socket = " << quoted(agent.admin_socket) << "\n";
  out << "max_connections = " << agent.max_connections << "\n"
      << "max_keys = " << agent.max_keys << "\n"
      << "deadline = " << quoted(print(agent.deadline)) << "\n";
  if (config.redis) {
    out << "\n[redis]\n"
        << "url = " << quoted(config.redis->endpoint.display()) << "\n"
        << "prefix = " << quoted(config.redis->prefix) << "\n"
        << "reconnect_max = " << quoted(print(config.redis->reconnect_max)) << "\n";
  }
  for (const LimitConfig& limit : config.limits) {
    out << "\n[limits." << quoted(limit.name) << "]\n"
        << "algorithm = \"token_bucket\"\n"
        << "rate = " << quoted(print(limit.bucket.rate())) << "\n"
        << "burst = " << limit.bucket.burst() << "\n"
        << "on_failure = " << quoted(name_of(limit.on_failure)) << "\n"
        << "deadline = " << quoted(print(limit.deadline)) << "\n";
  }
  return out.str();
}

std::string hash_of(const Config& config) {
  const std::string text = to_toml(config);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits;
}

}  // namespace allowd::config
