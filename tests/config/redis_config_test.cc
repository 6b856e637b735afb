// SPDX-License-Identifier: MIT
#include "agent/config/redis_config.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

#include "agent/config/config.h"

namespace allowd::config {
namespace {

using namespace std::chrono_literals;

RedisConfig parsed(const std::string& lines) {
  auto config = parse_config("[redis]\n" + lines, "allowd.toml");
  REQUIRE_MESSAGE(config, lines << ": " << (config ? "" : config.error().message));
  REQUIRE(config->redis.has_value());
  return *config->redis;
}

void check_refused(const std::string& lines, const std::string& message) {
  CAPTURE(lines);
  auto config = parse_config("[redis]\n" + lines, "allowd.toml");
  REQUIRE_FALSE(config);
  CHECK(config.error().message == "allowd.toml:" + message);
}

TEST_CASE("redis config: a connection may be bounded in age, and is not unless said") {
  CHECK(parsed("url = \"redis://h\"\n").max_connection_age == 0us);
  CHECK(parsed("url = \"redis://h\"\nmax_connection_age = \"0\"\n").max_connection_age == 0us);
  CHECK(parsed("url = \"redis://h\"\nmax_connection_age = \"11h\"\n").max_connection_age == 11h);
}

TEST_CASE("redis config: a password file is every shard's") {
  const RedisConfig redis = parsed(
      "shards = [ { name = \"a\", url = \"redis://u@h\" }, { name = \"b\", url = \"redis://i\" } ]\n"
      "password_file = \"/run/token\"\n");
  for (const auto& node : redis.nodes) CHECK(node.endpoint.password_file == "/run/token");
  CHECK(redis.nodes[0].endpoint.user == "u");
}

TEST_CASE("redis config: the clock is the server's as measured, unless another is chosen") {
  using store::ClockSource;
  CHECK(parsed("url = \"redis://h\"\n").clock == ClockSource::synced);
  CHECK(parsed("url = \"redis://h\"\nclock = \"synced\"\n").clock == ClockSource::synced);
  CHECK(parsed("url = \"redis://h\"\nclock = \"redis\"\n").clock == ClockSource::redis);
  CHECK(parsed("url = \"redis://h\"\nclock = \"host\"\n").clock == ClockSource::host);
  check_refused("url = \"redis://h\"\nclock = \"mine\"\n",
                "3: redis.clock: must be \"synced\", \"redis\" or \"host\"");
}

TEST_CASE("redis config: a password stands in one place") {
  check_refused("url = \"redis://:p@h\"\npassword_file = \"/f\"\n",
                "3: redis.password_file: cannot stand beside a URL's password");
  check_refused("url = \"redis://h\"\npassword_file = \"\"\n", "3: redis.password_file: must be a path");
  for (const std::string key : {"user = \"u\"", "password = \"p\"", "db = 1"}) {
    check_refused("url = \"redis://h\"\n" + key + "\n",
                  "3: redis." + key.substr(0, key.find(' ')) + ": must stand in the URL, or beside sentinel");
  }
}

TEST_CASE("redis config: sentinels have the port of sentinels, and a user of their own") {
  const RedisConfig redis = parsed(
      "sentinel = { master = \"main\", nodes = [ \"redis://a\", \"redis://b:7\" ], user = \"w\", password = "
      "\"wp\" }\nuser = \"u\"\npassword = \"p\"\ndb = 2\n");
  REQUIRE(redis.sentinel.has_value());
  CHECK_FALSE(redis.is_single_url());
  CHECK(redis.sentinel->master == "main");
  REQUIRE(redis.sentinel->sentinels.size() == 2);
  CHECK(redis.sentinel->sentinels[0].port == 26379);
  CHECK(redis.sentinel->sentinels[1].port == 7);
  for (const auto& sentinel : redis.sentinel->sentinels) {
    CHECK(sentinel.user == "w");
    CHECK(sentinel.password == "wp");
  }
  REQUIRE(redis.nodes.size() == 1);
  CHECK(redis.nodes[0].name == "redis");
  CHECK(redis.nodes[0].endpoint.user == "u");
  CHECK(redis.nodes[0].endpoint.password == "p");
  CHECK(redis.nodes[0].endpoint.db == 2);
}

TEST_CASE("redis config: sentinels over TLS have servers over TLS") {
  const RedisConfig redis = parsed("sentinel = { master = \"m\", nodes = [ \"rediss://a\" ] }\n");
  CHECK(redis.uses_tls());
  CHECK(redis.nodes[0].endpoint.is_tls);
  CHECK_FALSE(parsed("sentinel = { master = \"m\", nodes = [ \"redis://a\" ] }\n").uses_tls());
}

TEST_CASE("redis config: a password file beside sentinels is the servers', not theirs") {
  const RedisConfig redis = parsed(
      "sentinel = { master = \"m\", nodes = [ \"redis://:own@a\" ] }\nuser = \"u\"\npassword_file = "
      "\"/f\"\n");
  CHECK(redis.nodes[0].endpoint.password_file == "/f");
  CHECK(redis.sentinel->sentinels[0].password == "own");
  CHECK(redis.sentinel->sentinels[0].password_file.empty());
}

TEST_CASE("redis config: what is wrong with sentinels is named") {
  const std::string nodes = "nodes = [ \"redis://a\" ]";
  check_refused("sentinel = { " + nodes + " }\n", "2: redis.sentinel: master is missing");
  check_refused("sentinel = { master = \"a b\", " + nodes + " }\n",
                "2: redis.sentinel.master: must be printable ASCII characters without spaces");
  check_refused("sentinel = { master = \"m\" }\n", "2: redis.sentinel.nodes: must be 1 to 16 URLs");
  check_refused("sentinel = { master = \"m\", nodes = [ 1 ] }\n",
                "2: redis.sentinel.nodes: must be an array of strings");
  check_refused("sentinel = { master = \"m\", nodes = [ \"redis://a/3\" ] }\n",
                "2: redis.sentinel.nodes: a sentinel has no databases");
  check_refused("sentinel = { master = \"m\", nodes = [ \"redis://:x@a\" ], password = \"p\" }\n",
                "2: redis.sentinel.nodes: cannot have passwords beside the table's own");
  check_refused("sentinel = { master = \"m\", " + nodes + ", user = \"u\" }\n",
                "2: redis.sentinel.user: needs a password or a password_file");
  check_refused("sentinel = { master = \"m\", " + nodes + ", password = \"u\", password_file = \"/f\" }\n",
                "2: redis.sentinel.password_file: cannot stand beside password");
  check_refused("sentinel = { master = \"m\", nodes = [ \"redis://a\", \"rediss://b\" ] }\n",
                "2: redis.sentinel.nodes: must be all redis:// or all rediss://");
  check_refused("url = \"redis://h\"\nsentinel = { master = \"m\", " + nodes + " }\n",
                "3: redis.sentinel: cannot stand beside url");
  check_refused("prefix = \"p\"\n", "1: redis: url, shards, cluster or sentinel is missing");
}

}  // namespace
}  // namespace allowd::config
