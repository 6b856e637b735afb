// SPDX-License-Identifier: MIT
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "agent/config/config.h"
#include "tests/support/printing.h"

namespace allowd::config {
namespace {

using namespace std::chrono_literals;

Config parsed(const std::string& text) {
  CAPTURE(text);
  auto config = parse_config(text, "f");
  if (!config) FAIL(config.error().message);
  return *config;
}

void check_same(const Config& a, const Config& b) {
  CHECK(a.agent.socket == b.agent.socket);
  CHECK(a.agent.socket_mode == b.agent.socket_mode);
  CHECK(a.agent.socket_group == b.agent.socket_group);
  CHECK(a.agent.admin_socket == b.agent.admin_socket);
  CHECK(a.agent.max_connections == b.agent.max_connections);
  CHECK(a.agent.max_keys == b.agent.max_keys);
  CHECK(a.agent.deadline == b.agent.deadline);
  REQUIRE(a.redis.has_value() == b.redis.has_value());
  if (a.redis) {
    REQUIRE(a.redis->nodes.size() == b.redis->nodes.size());
    for (std::size_t i = 0; i < a.redis->nodes.size(); ++i) {
      CHECK(a.redis->nodes[i].name == b.redis->nodes[i].name);
      CHECK(a.redis->nodes[i].endpoint.display() == b.redis->nodes[i].endpoint.display());
    }
    CHECK(a.redis->prefix == b.redis->prefix);
    CHECK(a.redis->reconnect_max == b.redis->reconnect_max);
    CHECK(a.redis->tls == b.redis->tls);
    CHECK(a.redis->max_connection_age == b.redis->max_connection_age);
    CHECK(a.redis->password_file == b.redis->password_file);
    CHECK(a.redis->clock == b.redis->clock);
    REQUIRE(a.redis->sentinel.has_value() == b.redis->sentinel.has_value());
    if (a.redis->sentinel) {
      CHECK(a.redis->sentinel->master == b.redis->sentinel->master);
      CHECK(a.redis->sentinel->sentinels.size() == b.redis->sentinel->sentinels.size());
    }
  }
  REQUIRE(a.limits.size() == b.limits.size());
  for (std::size_t i = 0; i < a.limits.size(); ++i) {
    CHECK(a.limits[i].name == b.limits[i].name);
    CHECK(*a.limits[i].definition == *b.limits[i].definition);
    CHECK(a.limits[i].on_failure == b.limits[i].on_failure);
    CHECK(a.limits[i].deadline == b.limits[i].deadline);
  }
}

const char* const kFull = R"(
  [agent]
  socket = "/run/a \"b\" \\.sock"
  socket_mode = "0606"
  socket_group = "www-data"
  admin_socket = "/run/é.sock"
  max_connections = 7
  max_keys = 99
  deadline = "1500us"
  [redis]
  url = "redis://hugo:s3cr3t@[::1]:6380/2"
  prefix = "rl-v1"
  reconnect_max = "90s"
  [limits.api]
  rate = "100/s"
  burst = 200
  [limits."a.b \"c\" \\"]
  rate = "7/90min"
  on_failure = "deny"
  deadline = "1week"
)";

const char* const kShards = R"(
  [redis]
  shards = [ { name = "\\", url = "redis://hugo:s3cr3t@[::1]:6380/2" }, { name = "\"b\"", url = "unix:///r" } ]
)";

const char* const kTls = R"(
  [redis]
  url = "rediss://hugo:s3cr3t@h:1/2"
  [redis.tls]
  ca_file = "/a b.pem"
  cert_file = "/c.pem"
  key_file = "/k.pem"
  server_name = "redis.internal"
  verify = false
)";

const char* const kSentinel = R"(
  [redis]
  sentinel = { master = "main", nodes = [ "redis://h1", "redis://[::1]:5000" ], user = "w", password_file = "/w" }
  db = 3
  password_file = "/run/secret \"x\""
  max_connection_age = "1h"
  clock = "redis"
)";

TEST_CASE("config text: the effective configuration is read back the same") {
  for (const std::string text :
       {"", kFull, kShards, kTls, kSentinel, "[redis]\nurl = \"unix:///run/r.sock?db=3\"\n",
        "[limits.x]\nrate = \"1/week\"\n"}) {
    const Config config = parsed(text);
    const Config again = parsed(to_toml(config));
    check_same(config, again);
    CHECK(to_toml(again) == to_toml(config));
  }
}

TEST_CASE("config text: control characters in a path survive being printed and read back") {
  for (const char* path :
       {"/run/a\\nb.sock", "/run/a\\tb.sock", "/run/a\\u007fb.sock", "/run/\\u0001.sock"}) {
    CAPTURE(path);
    const Config config = parsed("[agent]\nsocket = \"" + std::string(path) + "\"\n");
    auto again = parse_config(to_toml(config), "printed");
    CHECK(again);
    if (again) CHECK(again->agent.socket == config.agent.socket);
  }
}

TEST_CASE("config text: every default is written out, and passwords are not") {
  const std::string defaults =
      to_toml(parsed("[redis]\nurl = \"redis://h\"\n[limits.api]\nrate = \"100/s\"\n"));
  CHECK(defaults ==
        "[agent]\n"
        "socket_mode = \"0660\"\n"
        "max_connections = 1024\n"
        "max_keys = 262144\n"
        "deadline = \"20ms\"\n"
        "shadow = false\n"
        "\n"
        "[redis]\n"
        "url = \"redis://h:6379\"\n"
        "prefix = \"allowd\"\n"
        "reconnect_max = \"2s\"\n"
        "clock = \"synced\"\n"
        "max_connection_age = \"0\"\n"
        "\n"
        "[prefilter]\n"
        "trust = \"1s\"\n"
        "hold = \"100ms\"\n"
        "\n"
        "[limits.\"api\"]\n"
        "algorithm = \"token_bucket\"\n"
        "rate = \"100/s\"\n"
        "burst = 100\n"
        "shadow = false\n"
        "scope = \"global\"\n"
        "refund = false\n"
        "on_failure = \"allow\"\n"
        "deadline = \"20ms\"\n");
  const std::string tls = to_toml(parsed("[redis]\nurl = \"rediss://h\"\n"));
  CHECK(tls.find("url = \"rediss://h:6379\"\n") != std::string::npos);
  CHECK(tls.find("max_connection_age = \"0\"\n\n[redis.tls]\nverify = true\n\n[prefilter]") !=
        std::string::npos);
  CHECK(to_toml(parsed(kTls))
            .find("[redis.tls]\nca_file = \"/a b.pem\"\ncert_file = \"/c.pem\"\nkey_file = "
                  "\"/k.pem\"\nserver_name = \"redis.internal\"\nverify = false\n") != std::string::npos);
  const std::string full = to_toml(parsed(kFull));
  CHECK(full.find("s3cr3t") == std::string::npos);
  CHECK(full.find("hugo") == std::string::npos);
  CHECK(full.find("redis://[::1]:6380/2") != std::string::npos);
  const std::string shards = to_toml(parsed(kShards));
  CHECK(shards.find("s3cr3t") == std::string::npos);
  CHECK(shards.find(R"(shards = [ { name = "\\", url = "redis://[::1]:6380/2" }, { name = "\"b\"", url = )"
                    R"("unix:///r" } ])") != std::string::npos);
}

TEST_CASE("config text: the hash changes with every setting and with nothing else") {
  const std::vector<std::string> different = {"",
                                              "[agent]\nsocket = \"/a\"\n",
                                              "[agent]\nsocket_mode = \"0600\"\n",
                                              "[agent]\nsocket_group = \"g\"\n",
                                              "[agent]\nadmin_socket = \"/a\"\n",
                                              "[agent]\nmax_connections = 5\n",
                                              "[agent]\nmax_keys = 5\n",
                                              "[agent]\ndeadline = \"5ms\"\n",
                                              "[redis]\nurl = \"redis://h\"\n",
                                              "[redis]\nurl = \"redis://h/1\"\n",
                                              "[redis]\nshards = [ { name = \"a\", url = \"redis://h\" } ]\n",
                                              "[redis]\nurl = \"redis://h\"\nprefix = \"p\"\n",
                                              "[redis]\nurl = \"redis://h\"\nmax_connection_age = \"1h\"\n",
                                              "[redis]\nurl = \"redis://h\"\nclock = \"host\"\n",
                                              "[redis]\nurl = \"redis://h\"\npassword_file = \"/f\"\n",
                                              "[limits.a]\nrate = \"1/s\"\n",
                                              "[limits.b]\nrate = \"1/s\"\n",
                                              "[limits.a]\nrate = \"2/s\"\n",
                                              "[limits.a]\nrate = \"1/s\"\nburst = 2\n",
                                              "[limits.a]\nrate = \"1/s\"\non_failure = \"deny\"\n"};
  std::set<std::string> hashes;
  for (const std::string& text : different) {
    const std::string hash = hash_of(parsed(text));
    CHECK(hash.size() == 16);
    CHECK(hash.find_first_not_of("0123456789abcdef") == std::string::npos);
    hashes.insert(hash);
  }
  CHECK(hashes.size() == different.size());
  CHECK(hash_of(parsed("[agent]\ndeadline = \"20ms\" # the default\n")) == hash_of(parsed("")));
  CHECK(hash_of(parsed("[limits.a]\nrate = \"60/min\"\nburst = 60\n")) ==
        hash_of(parsed("[limits.a]\nrate = \"60/1min\"\n")));
}

}  // namespace
}  // namespace allowd::config
