// SPDX-License-Identifier: MIT
#include "clients/cpp/discovery.h"

#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace allowd::client {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string find_socket() {
  if (std::string path = environment("ALLOWD_SOCKET"); !path.empty()) return path;
  std::vector<std::string> candidates = {"/run/allowd/allowd.sock"};
  if (const std::string runtime = environment("XDG_RUNTIME_DIR"); !runtime.empty()) {
    candidates.push_back(runtime + "/allowd.sock");
  }
  candidates.push_back("/tmp/allowd-" + std::to_string(::getuid()) + "/allowd.sock");
  for (const std::string& path : candidates) {
    if (::access(path.c_str(), F_OK) == 0) return path;
  }
  return candidates.front();
}

std::string find_admin_socket(std::string_view socket_path) {
  if (std::string path = environment("ALLOWD_ADMIN_SOCKET"); !path.empty()) return path;
  constexpr std::string_view kEnding = ".sock";
  if (socket_path.ends_with(kEnding)) socket_path.remove_suffix(kEnding.size());
  return std::string(socket_path) + ".admin.sock";
}

}  // namespace allowd::client
