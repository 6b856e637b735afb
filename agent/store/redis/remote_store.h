// SPDX-License-Identifier: MIT
//
// A store that many hosts share over the network, in whatever topology: it is started, and sends what has
// gathered at the end of each turn of the loop.
#pragma once

#include "agent/store/shared_store.h"

namespace allowd::store {

class RemoteStore : public SharedStore {
 public:
  // Begins to connect.
  virtual void start() = 0;
  // Sends what has gathered. Call at the end of each turn of the loop.
  virtual void flush() = 0;
  // This agent is about to stop: it counts no more.
  virtual void leave() = 0;
};

}  // namespace allowd::store
