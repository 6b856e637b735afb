// SPDX-License-Identifier: MIT
//
// Notices that a password file holds another password than one that was refused, so that nobody waits longer
// for a rotated secret than it takes to arrive.
//
// Errors     A file that cannot be read holds nothing new; it is looked at again.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "agent/loop/timer.h"
#include "agent/store/redis/link/password_file.h"

namespace allowd::store {

class PasswordWatch {
 public:
  explicit PasswordWatch(loop::Loop& loop, loop::Micros every = std::chrono::seconds(1))
      : every_(every), file_(loop), timer_(loop) {}

  // Looks at the file every so often. Calls `on_change` once, when it holds something else than `refused`.
  void start(std::string path, std::string refused, std::function<void()> on_change);
  // Nobody is called any more.
  void stop();

 private:
  void look();

  loop::Micros every_;
  PasswordFile file_;
  loop::Timer timer_;
  std::string path_;
  std::string refused_;
  std::function<void()> on_change_;
};

}  // namespace allowd::store
