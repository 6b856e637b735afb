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

// Keeps all of libuv's threads busy, so that a look-up stays queued and can be cancelled.
class BusyThreads {
 public:
  explicit BusyThreads(loop::Loop& loop) {
    for (uv_work_t& work : work_) {
      work.data = this;
      uv_queue_work(loop.raw(), &work, wait, [](uv_work_t*, int) {});
    }
    while (waiting_ < 4) std::this_thread::yield();
  }
  void let_go() { may_go_ = true; }

 private:
  static void wait(uv_work_t* work) {
    auto& self = *static_cast<BusyThreads*>(work->data);
    ++self.waiting_;
    while (!self.may_go_) std::this_thread::yield();
  }

  std::array<uv_work_t, 4> work_{};  // libuv has four threads unless the environment says otherwise
  std::atomic<int> waiting_{0};
  std::atomic<bool> may_go_{false};
};

}  // namespace allowd::testing
