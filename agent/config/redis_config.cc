// SPDX-License-Identifier: MIT
#include "agent/config/redis_config.h"

#include <algorithm>
#include <array>

#include "agent/config/config_table.h"
#include "agent/config/tls_config.h"

namespace allowd::config {
namespace {

constexpr std::size_t kMaxShards = 64;
constexpr std::size_t kMaxShardNameBytes = 64;
constexpr std::size_t kMaxSeeds = 64;

store::RedisEndpoint read_url(const Table& table) {
  const auto url = table.text("url");
  if (!url) table.fail("url is missing");
  auto endpoint = store::parse_redis_url(*url);
  if (!endpoint) table.fail("url", endpoint.error().message);
  return *endpoint;
}

std::vector<store::RedisNode> read_shards(const Table& table) {
  constexpr std::array<std::string_view, 2> kKnown = {"name", "url"};
  std::vector<store::RedisNode> nodes;
  for (const Table& shard : table.tables("shards")) {
    shard.allow_only(kKnown);
    const auto name = shard.text("name");
    if (!name) shard.fail("name is missing");
    const bool is_plain =
        std::all_of(name->begin(), name->end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (name->empty() || name->size() > kMaxShardNameBytes || !is_plain) {
      shard.fail("name", "must be 1 to 64 printable ASCII characters without spaces");
    }
    const bool is_taken =
        std::any_of(nodes.begin(), nodes.end(), [&](const auto& node) { return node.name == *name; });
    if (is_taken) shard.fail("name", "is another shard's too");
    nodes.push_back({*name, read_url(shard)});
  }
  if (nodes.empty() || nodes.size() > kMaxShards) table.fail("shards", "must be 1 to 64 shards");
  return nodes;
}

// Nodes of one Cluster: what is in a URL beside the address holds for all of its nodes.
std::vector<store::RedisEndpoint> read_cluster(const Table& table) {
  std::vector<store::RedisEndpoint> seeds;
  for (const std::string& url : table.texts("cluster")) {
    auto seed = store::parse_redis_url(url);
    if (!seed) table.fail("cluster", seed.error().message);
    if (!seed->unix_path.empty()) table.fail("cluster", "nodes of a Cluster are found at hosts and ports");
    if (seed->db != 0) table.fail("cluster", "a Cluster has no other database than 0");
    seeds.push_back(*seed);
    store::RedisEndpoint first = seeds.front();
    first.host = seed->host;
    first.port = seed->port;
    if (first != *seed) table.fail("cluster", "must have the same scheme, user and password in all URLs");
  }
  if (seeds.empty() || seeds.size() > kMaxSeeds) table.fail("cluster", "must be 1 to 64 URLs");
  return seeds;
}

// What says where Redis is.
void read_topology(const Table& table, RedisConfig& redis) {
  constexpr std::array<std::string_view, 3> kTopologies = {"url", "shards", "cluster"};
  std::string_view chosen;
  for (const std::string_view key : kTopologies) {
    if (!table.has(key)) continue;
    if (!chosen.empty()) table.fail(key, "cannot stand beside " + std::string(chosen));
    chosen = key;
  }
  if (chosen.empty()) table.fail("url, shards or cluster is missing");
  if (chosen == "url") redis.nodes = {{std::string(store::kOnlyRedis), read_url(table)}};
  if (chosen == "shards") redis.nodes = read_shards(table);
  if (chosen == "cluster") redis.cluster = read_cluster(table);
}

}  // namespace

bool RedisConfig::uses_tls() const {
  if (!cluster.empty()) return cluster.front().is_tls;
  return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.endpoint.is_tls; });
}

RedisConfig read_redis(const Table& table) {
  constexpr std::array<std::string_view, 6> kKnown = {"url",    "shards",        "cluster",
                                                      "prefix", "reconnect_max", "tls"};
  constexpr std::array<std::string_view, 4> kLater = {"sentinel", "clock", "password_file",
                                                      "max_connection_age"};
  table.allow_only(kKnown, kLater);
  RedisConfig redis;
  read_topology(table, redis);
  if (const auto prefix = table.text("prefix")) {
    const bool is_plain = std::all_of(prefix->begin(), prefix->end(), [](unsigned char c) {
      return c > 0x20 && c < 0x7f && c != '{' && c != '}' && c != ':';
    });
    if (prefix->empty() || prefix->size() > 64 || !is_plain) {
      table.fail("prefix", "must be 1 to 64 printable ASCII characters without braces, colons and spaces");
    }
    redis.prefix = *prefix;
  }
  redis.reconnect_max = table.duration("reconnect_max").value_or(redis.reconnect_max);
  if (const auto tls = table.table("tls")) {
    if (!redis.uses_tls()) table.fail("tls", "is for rediss:// URLs, and there is none");
    redis.tls = read_tls(*tls);
  }
  return redis;
}

}  // namespace allowd::config
