// SPDX-License-Identifier: MIT
//
// A timer that calls back once, or every so often. Destroying or stopping it ends it for good.
//
// Units      libuv's timers have a resolution of a millisecond; waits are rounded up to it.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>

#include "agent/loop/loop.h"

namespace allowd::loop {

class Timer {
 public:
  explicit Timer(Loop& loop);

  // Replaces whatever was scheduled.
  void once(Micros after, std::function<void()> work) { start(after, Micros{0}, std::move(work)); }
  void every(Micros period, std::function<void()> work) { start(period, period, std::move(work)); }
  void stop();
  [[nodiscard]] bool is_running() const {
    return uv_is_active(reinterpret_cast<uv_handle_t*>(handle_.get()));
  }

 private:
  struct Close {
    void operator()(uv_timer_t* timer) const noexcept;
  };
  void start(Micros after, Micros period, std::function<void()> work);

  // Shared with the handle's close callback through the handle's data.
  std::unique_ptr<std::function<void()>> work_;
  std::unique_ptr<uv_timer_t, Close> handle_;
};

}  // namespace allowd::loop
