// SPDX-License-Identifier: MIT
//
// A store that many hosts share over the network, in whatever topology: it is started, and sends what has
// gathered at the end of each turn of the loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "agent/store/redis/link/endpoint.h"
#include "agent/store/shared_store.h"
#include "agent/tls/tls_options.h"

namespace allowd::store {

class RemoteStore : public SharedStore {
 public:
  // What is the same in every topology.
  struct Options {
    std::string prefix = "allowd";
    limiter::Micros reconnect_max = std::chrono::seconds(2);
    limiter::Micros max_connection_age{0};  // 0: no bound
    ClockSource clock = ClockSource::synced;
    limiter::Micros deadline{0};  // of queries, for warnings; 0: none
    tls::TlsOptions tls;          // of those servers that want TLS
    std::uint64_t random_seed = 0;
    std::string agent_id;  // under which this agent is counted; no two alike
    // Unanswered; beyond, a question fails at once. Each server has an equal part, so that one which hangs
    // cannot use up the others'.
    std::size_t max_questions = 65'536;
  };

  // Begins to connect.
  virtual void start() = 0;
  // Sends what has gathered. Call at the end of each turn of the loop.
  virtual void flush() = 0;
  // This agent is about to stop: it counts no more.
  virtual void leave() = 0;
};

}  // namespace allowd::store
