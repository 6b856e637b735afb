// SPDX-License-Identifier: MIT
//
// The table [redis]: which servers keep the limits, and how they are reached.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent/limiter/time.h"
#include "agent/store/redis/link/endpoint.h"

namespace allowd::config {

class Table;

struct RedisConfig {
  std::vector<store::RedisNode> nodes;  // never empty; of a `url` alone one, named kOnlyRedis
  std::string prefix = "allowd";
  limiter::Micros reconnect_max = std::chrono::seconds(2);

  // What a `url` makes, and one shard of that name: they mean the same.
  [[nodiscard]] bool is_single_url() const {
    return nodes.size() == 1 && nodes.front().name == store::kOnlyRedis;
  }
};

// Throws a Problem where something is wrong.
[[nodiscard]] RedisConfig read_redis(const Table& table);

}  // namespace allowd::config
