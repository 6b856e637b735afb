// SPDX-License-Identifier: MIT
//
// Work that is put off to the loop's next turn, which does not wait for anything else. A timer of zero will
// not do: libuv runs one that is started by a timer in the same turn. Destroying or stopping it ends it for
// good.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>

#include "agent/loop/loop.h"

namespace allowd::loop {

class NextTurn {
 public:
  explicit NextTurn(Loop& loop);

  // Once. Replaces whatever was to be called.
  void call(std::function<void()> work);
  void stop();
  [[nodiscard]] bool is_waiting() const {
    return uv_is_active(reinterpret_cast<const uv_handle_t*>(handle_.get())) != 0;
  }

 private:
  struct Close {
    void operator()(uv_idle_t* idle) const noexcept;
  };

  // Shared with the handle's close callback through the handle's data.
  std::unique_ptr<std::function<void()>> work_;
  std::unique_ptr<uv_idle_t, Close> handle_;
};

}  // namespace allowd::loop
