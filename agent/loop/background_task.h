// SPDX-License-Identifier: MIT
//
// Runs a function on libuv's pool of threads, for work that would hold the loop up: reading a file, parsing
// it.
//
// Threads    `work` runs on another thread and must own all that it touches; `done` runs on the loop.
// Ownership  Destroyed while `work` runs, `done` is not called any more.
#pragma once

#include <functional>
#include <memory>

#include "agent/loop/loop.h"

namespace allowd::loop {

class BackgroundTask {
 public:
  explicit BackgroundTask(Loop& loop) : loop_(loop) {}
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  [[nodiscard]] bool is_running() const { return job_ != nullptr; }
  // Expects that nothing runs.
  void start(std::function<void()> work, std::function<void()> done);

 private:
  struct Job;

  Loop& loop_;
  Job* job_ = nullptr;  // frees itself when libuv has finished
};

}  // namespace allowd::loop
