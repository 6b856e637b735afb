// SPDX-License-Identifier: MIT
//
// Signals as events of the loop.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>

#include "agent/loop/loop.h"

namespace allowd::io {

class Signal {
 public:
  // Calls `work` whenever `number` arrives, until destroyed.
  Signal(loop::Loop& loop, int number, std::function<void()> work);
  ~Signal();
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

 private:
  std::function<void()> work_;
  uv_signal_t* handle_;
};

}  // namespace allowd::io
