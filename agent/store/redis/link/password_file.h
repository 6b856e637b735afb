// SPDX-License-Identifier: MIT
//
// Reads a password from a file, beside the loop: secrets are rotated and tokens expire, so it is read anew
// whenever one is needed.
//
// One file is read at a time. A read that hangs (a network file system) cannot be taken back; asking for the
// same file again waits for that one.
#pragma once

#include <functional>
#include <string>

#include "agent/loop/background_task.h"
#include "agent/result/result.h"

namespace allowd::store {

// Blocks. The content without one trailing newline; an error for what is no regular file, empty or over 64
// KiB.
[[nodiscard]] Result<std::string> read_password_file(const std::string& path);

class PasswordFile {
 public:
  using Done = std::function<void(Result<std::string>)>;

  explicit PasswordFile(loop::Loop& loop) : task_(loop) {}

  // Calls `done` once, unless `forget` or another read comes first.
  void read(const std::string& path, Done done);
  // The answer is not wanted any more.
  void forget() { done_ = nullptr; }

 private:
  loop::BackgroundTask task_;
  std::string path_;  // that the task reads
  Done done_;
};

}  // namespace allowd::store
