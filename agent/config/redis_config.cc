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

}  // namespace

bool RedisConfig::uses_tls() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.endpoint.is_tls; });
}

RedisConfig read_redis(const Table& table) {
  constexpr std::array<std::string_view, 5> kKnown = {"url", "shards", "prefix", "reconnect_max", "tls"};
  constexpr std::array<std::string_view, 5> kLater = {"cluster", "sentinel", "clock", "password_file",
                                                      "max_connection_age"};
  table.allow_only(kKnown, kLater);
  RedisConfig redis;
  if (table.has("shards")) {
    if (table.has("url")) table.fail("shards", "cannot stand beside url");
    redis.nodes = read_shards(table);
  } else if (table.has("url")) {
    redis.nodes = {{std::string(store::kOnlyRedis), read_url(table)}};
  } else {
    table.fail("url or shards is missing");
  }
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
