// SPDX-License-Identifier: MIT
//
// What the agent says about itself: `info` and `stats`, on both sockets.
#pragma once

#include <string>

#include "agent/admin/config_status.h"
#include "agent/decide/limit_table.h"
#include "agent/stats/registry.h"
#include "agent/store/store.h"
#include "protocol/value.h"

namespace allowd::admin {

class Reporter {
 public:
  Reporter(std::string version, const ConfigStatus& config, const decide::LimitTable& limits,
           const store::Store& store, const stats::Registry& registry, store::SteadyTime started)
      : version_(std::move(version)),
        config_(config),
        limits_(limits),
        store_(store),
        registry_(registry),
        started_(started) {}

  // The map of design and PROTOCOL.md: version, protocol, features, uptime_us, store, ...
  [[nodiscard]] protocol::Value info(store::SteadyTime now) const;
  [[nodiscard]] protocol::Value stats() const;
  [[nodiscard]] std::string stats_as_text() const;
  [[nodiscard]] std::string stats_for_prometheus() const;
  // The keys that are asked about and refused most.
  [[nodiscard]] std::string top(std::size_t rows, store::SteadyTime now) const;
  // A line per server that keeps limits.
  [[nodiscard]] std::string shards() const { return store_.describe_shards(); }

 private:
  std::string version_;
  const ConfigStatus& config_;
  const decide::LimitTable& limits_;
  const store::Store& store_;
  const stats::Registry& registry_;
  store::SteadyTime started_;
};

}  // namespace allowd::admin
