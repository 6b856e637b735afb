// SPDX-License-Identifier: MIT
#include "agent/loop/next_turn.h"

#include <utility>

namespace allowd::loop {

void NextTurn::Close::operator()(uv_idle_t* idle) const noexcept {
  uv_idle_stop(idle);
  uv_close(reinterpret_cast<uv_handle_t*>(idle),
           [](uv_handle_t* closed) { delete reinterpret_cast<uv_idle_t*>(closed); });
}

NextTurn::NextTurn(Loop& loop) : work_(std::make_unique<std::function<void()>>()), handle_(new uv_idle_t) {
  uv_idle_init(loop.raw(), handle_.get());
  handle_->data = work_.get();
}

void NextTurn::call(std::function<void()> work) {
  *work_ = std::move(work);
  uv_idle_start(handle_.get(), [](uv_idle_t* idle) {
    uv_idle_stop(idle);
    // Out of its place, since the work may put off more or destroy this.
    const auto due = std::exchange(*static_cast<std::function<void()>*>(idle->data), nullptr);
    due();
  });
}

void NextTurn::stop() { uv_idle_stop(handle_.get()); }

}  // namespace allowd::loop
