// SPDX-License-Identifier: MIT
#include "clients/cpp/discovery.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace allowd::client {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Anybody may create names in /tmp.
bool is_own_directory(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::getuid();
}

}  // namespace

std::string find_socket() {
  if (std::string path = environment("ALLOWD_SOCKET"); !path.empty()) return path;
  std::vector<std::string> candidates = {"/run/allowd/allowd.sock"};
  if (const std::string runtime = environment("XDG_RUNTIME_DIR"); !runtime.empty()) {
    candidates.push_back(runtime + "/allowd.sock");
  }
  const std::string shared = "/tmp/allowd-" + std::to_string(::getuid());
  if (is_own_directory(shared)) candidates.push_back(shared + "/allowd.sock");
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
