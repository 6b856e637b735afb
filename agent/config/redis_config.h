// SPDX-License-Identifier: MIT
//
// The table [redis]: which servers keep the limits, and how they are reached.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/limiter/time.h"
#include "agent/store/redis/link/endpoint.h"
#include "agent/tls/tls_options.h"

namespace allowd::config {

class Table;

struct RedisConfig {
  // Of a `url` alone one, named kOnlyRedis; so too of a `sentinel`, without an address then; of a Cluster
  // none.
  std::vector<store::RedisNode> nodes;
  std::vector<store::RedisEndpoint> cluster;  // where nodes of a Cluster are; of none of the others any
  std::optional<store::SentinelGroup> sentinel;
  std::string password_file;  // stands in every endpoint as well; empty: none
  std::string prefix = "allowd";
  limiter::Micros reconnect_max = std::chrono::seconds(2);
  tls::TlsOptions tls;                    // of all rediss:// URLs
  limiter::Micros max_connection_age{0};  // 0: no bound
  store::ClockSource clock = store::ClockSource::synced;

  // What a `url` makes, and one shard of that name: they mean the same.
  [[nodiscard]] bool is_single_url() const {
    return !sentinel && nodes.size() == 1 && nodes.front().name == store::kOnlyRedis;
  }
  // Whether any of its URLs is rediss://.
  [[nodiscard]] bool uses_tls() const;
};

[[nodiscard]] std::string_view name_of(store::ClockSource clock);

// Throws a Problem where something is wrong.
[[nodiscard]] RedisConfig read_redis(const Table& table);

}  // namespace allowd::config
