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
constexpr std::size_t kMaxSentinels = 16;
constexpr std::size_t kMaxSeeds = 64;

store::RedisEndpoint read_url(const Table& table, const store::UrlRules& rules) {
  const auto url = table.text("url");
  if (!url) table.fail("url is missing");
  auto endpoint = store::parse_redis_url(*url, rules);
  if (!endpoint) table.fail("url", endpoint.error().message);
  return *endpoint;
}

std::vector<store::RedisNode> read_shards(const Table& table, const store::UrlRules& rules) {
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
    nodes.push_back({*name, read_url(shard, rules)});
  }
  if (nodes.empty() || nodes.size() > kMaxShards) table.fail("shards", "must be 1 to 64 shards");
  return nodes;
}

std::string read_password_path(const Table& table) {
  const auto path = table.text("password_file");
  if (!path) return "";
  if (path->empty() || path->find('\0') != std::string::npos) table.fail("password_file", "must be a path");
  return *path;
}

// Signing in, where a URL does not say it.
void read_user(const Table& table, store::RedisEndpoint& endpoint) {
  endpoint.user = table.text("user").value_or("");
  endpoint.password = table.text("password").value_or("");
  endpoint.password_file = read_password_path(table);
  if (!endpoint.password.empty() && !endpoint.password_file.empty()) {
    table.fail("password_file", "cannot stand beside password");
  }
  if (!endpoint.user.empty() && endpoint.password.empty() && endpoint.password_file.empty()) {
    table.fail("user", "needs a password or a password_file");
  }
}

store::SentinelGroup read_sentinel(const Table& table) {
  constexpr std::array<std::string_view, 5> kKnown = {"master", "nodes", "user", "password", "password_file"};
  table.allow_only(kKnown);
  store::SentinelGroup group;
  const auto master = table.text("master");
  if (!master) table.fail("master is missing");
  const bool is_plain =
      std::all_of(master->begin(), master->end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (master->empty() || !is_plain) table.fail("master", "must be printable ASCII characters without spaces");
  group.master = *master;
  store::RedisEndpoint common;
  read_user(table, common);
  const bool has_common = !common.password.empty() || !common.password_file.empty();
  for (const std::string& url : table.texts("nodes")) {
    auto sentinel = store::parse_redis_url(url, {.default_port = store::kSentinelPort});
    if (!sentinel) table.fail("nodes", sentinel.error().message);
    if (sentinel->db != 0) table.fail("nodes", "a sentinel has no databases");
    if (!group.sentinels.empty() && group.sentinels.front().is_tls != sentinel->is_tls) {
      table.fail("nodes", "must be all redis:// or all rediss://");
    }
    if (has_common) {
      if (!sentinel->password.empty()) table.fail("nodes", "cannot have passwords beside the table's own");
      sentinel->user = common.user;
      sentinel->password = common.password;
      sentinel->password_file = common.password_file;
    }
    group.sentinels.push_back(*sentinel);
  }
  if (group.sentinels.empty() || group.sentinels.size() > kMaxSentinels) {
    table.fail("nodes", "must be 1 to 16 URLs");
  }
  return group;
}

// Nodes of one Cluster: what is in a URL beside the address holds for all of its nodes.
std::vector<store::RedisEndpoint> read_cluster(const Table& table, const store::UrlRules& rules) {
  std::vector<store::RedisEndpoint> seeds;
  for (const std::string& url : table.texts("cluster")) {
    auto seed = store::parse_redis_url(url, rules);
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
  constexpr std::array<std::string_view, 4> kTopologies = {"url", "shards", "cluster", "sentinel"};
  constexpr std::array<std::string_view, 3> kBesideSentinel = {"user", "password", "db"};
  std::string_view chosen;
  for (const std::string_view key : kTopologies) {
    if (!table.has(key)) continue;
    if (!chosen.empty()) table.fail(key, "cannot stand beside " + std::string(chosen));
    chosen = key;
  }
  if (chosen.empty()) table.fail("url, shards, cluster or sentinel is missing");
  if (chosen != "sentinel") {
    for (const std::string_view key : kBesideSentinel) {
      if (table.has(key)) table.fail(key, "must stand in the URL, or beside sentinel");
    }
    const store::UrlRules rules{.may_lack_password = table.has("password_file")};
    if (chosen == "cluster") {
      redis.cluster = read_cluster(table, rules);
    } else if (chosen == "shards") {
      redis.nodes = read_shards(table, rules);
    } else {
      redis.nodes = {{std::string(store::kOnlyRedis), read_url(table, rules)}};
    }
    return;
  }
  const auto sentinel = table.table("sentinel");
  redis.sentinel = read_sentinel(*sentinel);
  store::RedisEndpoint server;
  read_user(table, server);
  server.is_tls = redis.sentinel->sentinels.front().is_tls;
  server.db = static_cast<int>(table.integer("db", 0, 1'000'000).value_or(0));
  redis.nodes = {{std::string(store::kOnlyRedis), server}};
}

store::ClockSource read_clock(const Table& table) {
  const auto text = table.text("clock");
  if (!text) return store::ClockSource::synced;
  for (const auto clock : {store::ClockSource::synced, store::ClockSource::redis, store::ClockSource::host}) {
    if (*text == name_of(clock)) return clock;
  }
  table.fail("clock", "must be \"synced\", \"redis\" or \"host\"");
}

void read_password_file(const Table& table, RedisConfig& redis) {
  redis.password_file = read_password_path(table);
  if (redis.password_file.empty()) return;
  const auto set = [&](store::RedisEndpoint& endpoint) {
    if (!endpoint.password.empty()) table.fail("password_file", "cannot stand beside a URL's password");
    endpoint.password_file = redis.password_file;
  };
  for (store::RedisNode& node : redis.nodes) set(node.endpoint);
  for (store::RedisEndpoint& seed : redis.cluster) set(seed);
}

}  // namespace

bool RedisConfig::uses_tls() const {
  if (!cluster.empty()) return cluster.front().is_tls;
  return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.endpoint.is_tls; });
}

std::string_view name_of(store::ClockSource clock) {
  switch (clock) {
    case store::ClockSource::synced: return "synced";
    case store::ClockSource::redis: return "redis";
    case store::ClockSource::host: return "host";
  }
  return "";
}

RedisConfig read_redis(const Table& table) {
  constexpr std::array<std::string_view, 13> kKnown = {
      "url",           "cluster", "shards",        "sentinel",           "user",  "password", "db",
      "password_file", "prefix",  "reconnect_max", "max_connection_age", "clock", "tls"};
  table.allow_only(kKnown);
  RedisConfig redis;
  read_topology(table, redis);
  read_password_file(table, redis);
  redis.clock = read_clock(table);
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
  if (!table.is_text("max_connection_age") || *table.text("max_connection_age") != "0") {
    redis.max_connection_age = table.duration("max_connection_age").value_or(redis.max_connection_age);
  }
  if (const auto tls = table.table("tls")) {
    if (!redis.uses_tls()) table.fail("tls", "is for rediss:// URLs, and there is none");
    redis.tls = read_tls(*tls);
  }
  return redis;
}

}  // namespace allowd::config
