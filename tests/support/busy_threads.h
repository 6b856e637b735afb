// SPDX-License-Identifier: MIT
//
// Holds libuv's pool of threads up, so that what a test asks of it does not happen before the test says so.
#pragma once

#include <uv.h>

#include <array>
#include <atomic>
#include <thread>

#include "agent/loop/loop.h"

namespace allowd::testing {

// Keeps all of libuv's threads busy, so that a look-up stays queued and can be cancelled. Turns the loop at
// its end until they have let go of what they were given.
class BusyThreads {
 public:
  explicit BusyThreads(loop::Loop& loop) : loop_(loop) {
    for (uv_work_t& work : work_) {
      work.data = this;
      uv_queue_work(loop.raw(), &work, wait,
                    [](uv_work_t* ended, int) { ++static_cast<BusyThreads*>(ended->data)->ended_; });
    }
    while (waiting_ < work_.size()) std::this_thread::yield();
  }
  ~BusyThreads() {
    let_go();
    while (ended_ < work_.size()) uv_run(loop_.raw(), UV_RUN_ONCE);
  }
  BusyThreads(const BusyThreads&) = delete;
  BusyThreads& operator=(const BusyThreads&) = delete;
  void let_go() { may_go_ = true; }

 private:
  static void wait(uv_work_t* work) {
    auto& self = *static_cast<BusyThreads*>(work->data);
    ++self.waiting_;
    while (!self.may_go_) std::this_thread::yield();
  }

  loop::Loop& loop_;
  std::array<uv_work_t, 4> work_{};  // libuv has four threads unless the environment says otherwise
  std::atomic<std::size_t> waiting_{0};
  std::size_t ended_ = 0;
  std::atomic<bool> may_go_{false};
};

}  // namespace allowd::testing
