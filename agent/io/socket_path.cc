// SPDX-License-Identifier: MIT
#include "agent/io/socket_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace allowd::io {

Result<std::string> default_socket_path() {
  if (const char* path = std::getenv("ALLOWD_SOCKET"); path != nullptr && *path != '\0')
    return std::string(path);
  constexpr const char* kRunDirectory = "/run/allowd";
  const bool may_create_it = ::access(kRunDirectory, F_OK) != 0 && ::mkdir(kRunDirectory, 0755) == 0;
  if (may_create_it || ::access(kRunDirectory, W_OK | X_OK) == 0)
    return std::string(kRunDirectory) + "/allowd.sock";
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0') {
    return std::string(runtime) + "/allowd.sock";
  }
  const std::string directory = "/tmp/allowd-" + std::to_string(::getuid());
  struct stat status {};
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return Error{Error::Code::system, directory + ": " + std::strerror(errno)};
  }
  // Anybody may write to /tmp: what stands there must be a directory, and ours alone.
  if (::lstat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::getuid() ||
      (status.st_mode & 077) != 0) {
    return Error{Error::Code::system, directory + ": is not a directory that only this user can enter"};
  }
  return directory + "/allowd.sock";
}

std::string derive_admin_path(std::string_view socket_path) {
  constexpr std::string_view kEnding = ".sock";
  if (socket_path.ends_with(kEnding)) socket_path.remove_suffix(kEnding.size());
  return std::string(socket_path) + ".admin.sock";
}

}  // namespace allowd::io
