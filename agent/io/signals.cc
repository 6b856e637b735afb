// SPDX-License-Identifier: MIT
#include "agent/io/signals.h"

namespace allowd::io {

Signal::Signal(loop::Loop& loop, int number, std::function<void()> work)
    : work_(std::move(work)), handle_(new uv_signal_t) {
  uv_signal_init(loop.raw(), handle_);
  handle_->data = this;
  uv_signal_start(
      handle_,
      [](uv_signal_t* handle, int) {
        if (auto* owner = static_cast<Signal*>(handle->data)) owner->work_();
      },
      number);
  uv_unref(reinterpret_cast<uv_handle_t*>(handle_));
}

Signal::~Signal() {
  handle_->data = nullptr;
  uv_close(reinterpret_cast<uv_handle_t*>(handle_),
           [](uv_handle_t* closed) { delete reinterpret_cast<uv_signal_t*>(closed); });
}

}  // namespace allowd::io
