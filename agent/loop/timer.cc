// SPDX-License-Identifier: MIT
#include "agent/loop/timer.h"

#include <algorithm>

namespace allowd::loop {
namespace {

std::uint64_t to_ms(Micros span) {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(span).count()));
}

}  // namespace

void Timer::Close::operator()(uv_timer_t* timer) const noexcept {
  uv_timer_stop(timer);
  timer->data = nullptr;
  uv_close(reinterpret_cast<uv_handle_t*>(timer),
           [](uv_handle_t* closed) { delete reinterpret_cast<uv_timer_t*>(closed); });
}

Timer::Timer(Loop& loop) : work_(std::make_unique<std::function<void()>>()), handle_(new uv_timer_t) {
  uv_timer_init(loop.raw(), handle_.get());
  handle_->data = work_.get();
}

void Timer::start(Micros after, Micros period, std::function<void()> work) {
  *work_ = std::move(work);
  uv_update_time(handle_->loop);
  uv_timer_start(
      handle_.get(),
      [](uv_timer_t* timer) {
        if (timer->data == nullptr) return;
        // A copy, since the work may start the timer anew or destroy it.
        const auto due = *static_cast<std::function<void()>*>(timer->data);
        due();
      },
      to_ms(after), to_ms(period));
}

void Timer::stop() { uv_timer_stop(handle_.get()); }

}  // namespace allowd::loop
