// SPDX-License-Identifier: MIT
#include "agent/config/config.h"

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/printing.h"
#include "tests/support/temporary_directory.h"

namespace allowd::config {
namespace {

using namespace std::chrono_literals;

Config parsed(const std::string& text) {
  CAPTURE(text);
  auto config = parse_config(text, "allowd.toml");
  if (!config) FAIL(config.error().message);
  return *config;
}

void check_refused(const std::string& text, const std::string& message) {
  CAPTURE(text);
  auto config = parse_config(text, "allowd.toml");
  CHECK_FALSE(config);
  if (config) return;
  CHECK(config.error().code == Error::Code::bad_request);
  CHECK(config.error().message == message);
}

TEST_CASE("config: an empty file is every default") {
  const Config config = parsed("");
  CHECK(config.agent.socket.empty());
  CHECK(config.agent.socket_mode == 0660);
  CHECK(config.agent.socket_group.empty());
  CHECK(config.agent.admin_socket.empty());
  CHECK(config.agent.max_connections == 1024);
  CHECK(config.agent.max_keys == 262'144);
  CHECK(config.agent.deadline == 20ms);
  CHECK_FALSE(config.redis.has_value());
  CHECK(config.limits.empty());
}

TEST_CASE("config: every key of every table is read") {
  const Config config = parsed(R"(
    [agent]
    socket = "/run/a.sock"
    socket_mode = "0600"
    socket_group = "www-data"
    admin_socket = "/run/admin.sock"
    max_connections = 7
    max_keys = 1000000000
    deadline = "5ms"

    [redis]
    url = "redis://u:p@cache:6380/2"
    prefix = "rl-v1"
    reconnect_max = "10s"

    [limits.login]
    rate = "5/min"
    burst = 3
    algorithm = "token_bucket"
    on_failure = "deny"
    deadline = "1s"

    [limits."with.dots and spaces"]
    rate = "100/s"
  )");
  CHECK(config.agent.socket == "/run/a.sock");
  CHECK(config.agent.socket_mode == 0600);
  CHECK(config.agent.socket_group == "www-data");
  CHECK(config.agent.admin_socket == "/run/admin.sock");
  CHECK(config.agent.max_connections == 7);
  CHECK(config.agent.max_keys == 1'000'000'000);
  CHECK(config.agent.deadline == 5ms);
  REQUIRE(config.redis.has_value());
  REQUIRE(config.redis->nodes.size() == 1);
  const store::RedisEndpoint& endpoint = config.redis->nodes[0].endpoint;
  CHECK(config.redis->nodes[0].name == store::kOnlyRedis);
  CHECK(endpoint.host == "cache");
  CHECK(endpoint.port == 6380);
  CHECK(endpoint.db == 2);
  CHECK(endpoint.user == "u");
  CHECK(endpoint.password == "p");
  CHECK(config.redis->prefix == "rl-v1");
  CHECK(config.redis->reconnect_max == 10s);
  REQUIRE(config.limits.size() == 2);
  const LimitConfig& login = config.limits[0];
  CHECK(login.name == "login");
  CHECK(login.definition->bucket().rate() == limiter::Rate{5, 1min});
  CHECK(login.definition->bucket().burst() == 3);
  CHECK(login.on_failure == FailurePolicy::deny);
  CHECK(login.deadline == 1s);
  CHECK(config.limits[1].name == "with.dots and spaces");
}

TEST_CASE("config: what a limit leaves out comes from its rate and from the agent") {
  const Config config = parsed("[agent]\ndeadline = \"3ms\"\n[limits.api]\nrate = \"100/s\"\n");
  REQUIRE(config.limits.size() == 1);
  CHECK(config.limits[0].definition->bucket().burst() == 100);
  CHECK(config.limits[0].on_failure == FailurePolicy::allow);
  CHECK(config.limits[0].deadline == 3ms);
  CHECK(name_of(FailurePolicy::allow) == "allow");
  CHECK(name_of(FailurePolicy::deny) == "deny");
}

TEST_CASE("config: a [redis] with a url alone has the defaults") {
  const Config config = parsed("[redis]\nurl = \"unix:///run/redis.sock\"\n");
  REQUIRE(config.redis.has_value());
  REQUIRE(config.redis->nodes.size() == 1);
  CHECK(config.redis->nodes[0].endpoint.unix_path == "/run/redis.sock");
  CHECK(config.redis->prefix == "allowd");
  CHECK(config.redis->reconnect_max == 2s);
}

TEST_CASE("config: shards have a name and a url each, in the order of the file") {
  const Config config = parsed(
      "[redis]\nshards = [ { name = \"b\", url = \"redis://:p@h:1/2\" }, { name = \"a~!\", url = "
      "\"unix:///r.sock\" } ]\n");
  REQUIRE(config.redis.has_value());
  REQUIRE(config.redis->nodes.size() == 2);
  CHECK_FALSE(config.redis->is_single_url());
  CHECK(config.redis->nodes[0].name == "b");
  CHECK(config.redis->nodes[0].endpoint.host == "h");
  CHECK(config.redis->nodes[0].endpoint.password == "p");
  CHECK(config.redis->nodes[1].name == "a~!");
  CHECK(config.redis->nodes[1].endpoint.unix_path == "/r.sock");
  // One named as a url's server is means the same.
  CHECK(parsed("[redis]\nshards = [ { name = \"redis\", url = \"redis://h\" } ]\n").redis->is_single_url());
}

TEST_CASE("config: a Cluster is named by some of its nodes, with one user and password") {
  const Config config = parsed("[redis]\ncluster = [ \"redis://u:p@h:7000\", \"redis://u:p@[::1]/0\" ]\n");
  REQUIRE(config.redis.has_value());
  CHECK(config.redis->nodes.empty());
  REQUIRE(config.redis->cluster.size() == 2);
  CHECK(config.redis->cluster[0].host == "h");
  CHECK(config.redis->cluster[0].port == 7000);
  CHECK(config.redis->cluster[1].host == "::1");
  CHECK(config.redis->cluster[1].password == "p");
  const std::string shown = to_toml(config);
  CHECK(shown.find("cluster = [ \"redis://h:7000\", \"redis://[::1]:6379\" ]\n") != std::string::npos);
  CHECK(hash_of(config) != hash_of(parsed("[redis]\ncluster = [ \"redis://u:p@h:7000\" ]\n")));
}

TEST_CASE("config: what is wrong with a Cluster is named with its line") {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"1", "must be an array of strings"},
      {"[ 1 ]", "must be an array of strings"},
      {"[]", "must be 1 to 64 URLs"},
      {"[ \"http://h\" ]", "a Redis URL begins with redis://, rediss:// or unix://"},
      {"[ \"unix:///r.sock\" ]", "nodes of a Cluster are found at hosts and ports"},
      {"[ \"redis://h/1\" ]", "a Cluster has no other database than 0"},
      {"[ \"redis://h\", \"redis://:p@i\" ]", "must have the same scheme, user and password in all URLs"},
      {"[ \"redis://h\", \"rediss://i\" ]", "must have the same scheme, user and password in all URLs"},
  };
  for (const auto& [value, reason] : wrong)
    check_refused("[redis]\ncluster = " + value + "\n", "allowd.toml:2: redis.cluster: " + reason);
  check_refused("[redis]\nurl = \"redis://h\"\ncluster = [ \"redis://h\" ]\n",
                "allowd.toml:3: redis.cluster: cannot stand beside url");
  check_refused("[redis]\ncluster = [ \"redis://h\" ]\nshards = []\n",
                "allowd.toml:2: redis.cluster: cannot stand beside shards");
}

std::string shards_of(std::size_t count) {
  std::string text = "[redis]\nshards = [";
  for (std::size_t i = 0; i < count; ++i)
    text += (i == 0 ? "" : ",") + ("\n{ name = \"" + std::to_string(i)) + "\", url = \"redis://h\" }";
  return text + " ]\n";
}

TEST_CASE("config: what is wrong with shards is named with its line") {
  CHECK(parsed(shards_of(64)).redis->nodes.size() == 64);
  for (const std::size_t count : {0U, 65U})
    check_refused(shards_of(count), "allowd.toml:2: redis.shards: must be 1 to 64 shards");
  check_refused("[redis]\nurl = \"redis://h\"\nshards = []\n",
                "allowd.toml:3: redis.shards: cannot stand beside url");
  check_refused("[redis]\nshards = 1\n", "allowd.toml:2: redis.shards: must be an array of tables");
  check_refused("[redis]\nshards = [ \"redis://h\" ]\n",
                "allowd.toml:2: redis.shards: must be an array of tables");
  check_refused("[redis]\nshards = [\n{ url = \"redis://h\" } ]\n",
                "allowd.toml:3: redis.shards[0]: name is missing");
  check_refused("[redis]\nshards = [\n{ name = \"a\" } ]\n",
                "allowd.toml:3: redis.shards[0]: url is missing");
  check_refused("[redis]\nshards = [\n{ name = \"a\", url = \"http://h\" } ]\n",
                "allowd.toml:3: redis.shards[0].url: a Redis URL begins with redis://, rediss:// or unix://");
  check_refused("[redis]\nshards = [\n{ nam = \"a\" } ]\n",
                "allowd.toml:3: redis.shards[0].nam: unknown key; did you mean name?");
  check_refused(
      "[redis]\nshards = [\n{ name = \"a\", url = \"redis://h\" },\n{ name = \"a\", url = \"redis://i\" } "
      "]\n",
      "allowd.toml:4: redis.shards[1].name: is another shard's too");
  for (const std::string& name :
       {std::string(), std::string(65, 'n'), std::string("a b"), std::string("é"), std::string("a\\u007f")}) {
    check_refused(
        "[redis]\nshards = [\n{ name = \"" + name + "\", url = \"redis://h\" } ]\n",
        "allowd.toml:3: redis.shards[0].name: must be 1 to 64 printable ASCII characters without spaces");
  }
}

TEST_CASE("config: limits come in the order of their names") {
  const Config config = parsed(
      "[limits]\nb = { rate = \"1/s\" }\na = { rate = \"1/s\" }\n\"\\u00e9\" = { rate = \"1/s\" }\nB = "
      "{ rate = \"1/s\" }\n");
  std::vector<std::string> names;
  for (const LimitConfig& limit : config.limits) names.push_back(limit.name);
  CHECK(names == std::vector<std::string>{"B", "a", "b", "é"});
}

TEST_CASE("config: an unknown key is named with its line and the nearest known one") {
  check_refused("[agent]\nsocket = \"/a\"\ndeadlin = \"5ms\"\n",
                "allowd.toml:3: agent.deadlin: unknown key; did you mean deadline?");
  check_refused("[agnet]\n", "allowd.toml:1: agnet: unknown key; did you mean agent?");
  check_refused("\n\nlimit = 1\n", "allowd.toml:3: limit: unknown key; did you mean limits?");
  check_refused("[limits.api]\nrates = \"1/s\"\n",
                "allowd.toml:2: limits.api.rates: unknown key; did you mean rate?");
  check_refused("[redis]\nurl = \"redis://h\"\nprefixx = \"a\"\n",
                "allowd.toml:3: redis.prefixx: unknown key; did you mean prefix?");
  check_refused("[agent]\ncolour = 1\n", "allowd.toml:2: agent.colour: unknown key");
}

constexpr std::string_view kTls = "[redis]\nurl = \"rediss://h\"\n[redis.tls]\n";

std::string with_tls(std::string_view lines) { return std::string(kTls) + std::string(lines) + "\n"; }

TEST_CASE("config: what TLS rests on") {
  const Config implied = parsed("[redis]\nurl = \"rediss://h\"\n");
  REQUIRE(implied.redis.has_value());
  CHECK(implied.redis->uses_tls());
  CHECK(implied.redis->tls == tls::TlsOptions());
  CHECK(implied.redis->tls.verify);
  CHECK_FALSE(parsed("[redis]\nurl = \"redis://h\"\n").redis->uses_tls());

  const Config full = parsed(
      "[redis]\nshards = [ { name = \"a\", url = \"redis://h\" }, { name = \"b\", url = \"rediss://h\" } "
      "]\n[redis.tls]\nca_file = \"/ca\"\ncert_file = \"/cert\"\nkey_file = \"/key\"\nserver_name = "
      "\"name\"\nverify = false\n");
  CHECK(full.redis->uses_tls());
  CHECK(full.redis->tls == tls::TlsOptions{"/ca", "/cert", "/key", "name", false});
}

TEST_CASE("config: what TLS cannot rest on") {
  check_refused("[redis]\nurl = \"redis://h\"\n[redis.tls]\nca_file = \"/ca\"\n",
                "allowd.toml:3: redis.tls: is for rediss:// URLs, and there is none");
  check_refused(with_tls("cert_file = \"/c\""),
                "allowd.toml:4: redis.tls.cert_file: needs a key_file beside it");
  check_refused(with_tls("key_file = \"/k\""),
                "allowd.toml:4: redis.tls.key_file: needs a cert_file beside it");
  for (const std::string key : {"ca_file", "cert_file", "key_file"}) {
    check_refused(with_tls(key + " = \"\""), "allowd.toml:4: redis.tls." + key + ": must not be empty");
    check_refused(with_tls(key + " = \"a\\u0000\""),
                  "allowd.toml:4: redis.tls." + key + ": must not contain a NUL");
  }
  for (const std::string& name : {std::string(), std::string("a b"), std::string(254, 'x')}) {
    check_refused(
        with_tls("server_name = \"" + name + "\""),
        "allowd.toml:4: redis.tls.server_name: must be a DNS name or an IP address, without brackets "
        "or a port");
  }
  check_refused(with_tls("verify = 1"), "allowd.toml:4: redis.tls.verify: must be true or false");
  check_refused(with_tls("cafile = \"/ca\""),
                "allowd.toml:4: redis.tls.cafile: unknown key; did you mean ca_file?");
  check_refused("[redis]\nurl = \"rediss://h\"\ntls = true\n", "allowd.toml:3: redis.tls: must be a table");
}

TEST_CASE("config: what later versions will have is not supported rather than unknown") {
  check_refused("[prefilter]\ntrust = \"2m\"\n", "allowd.toml:2: prefilter.trust: must be at most 1m");
  check_refused("[prefilter]\nhold = \"2s\"\n",
                "allowd.toml:2: prefilter.hold: must not be longer than trust");
}

TEST_CASE("config: the policy local, shared between as many agents as are known or as are named") {
  auto config = parse_config(
      "[limits.a]\nrate = \"1/s\"\non_failure = \"local\"\n"
      "[limits.b]\nrate = \"1/s\"\non_failure = \"local\"\nlocal_share = 12\n",
      "f");
  REQUIRE(config);
  for (const LimitConfig& limit : config->limits) CHECK(limit.on_failure == FailurePolicy::local);
  CHECK(config->limits[0].local_share == 0);
  CHECK(config->limits[1].local_share == 12);
  CHECK(name_of(FailurePolicy::local) == "local");
  const std::string limit = "[limits.api]\nrate = \"10/s\"\n";
  check_refused(limit + "local_share = 2\n",
                "allowd.toml:3: limits.api.local_share: is for on_failure = \"local\"");
  check_refused(limit + "on_failure = \"local\"\nlocal_share = 0\n",
                "allowd.toml:4: limits.api.local_share: must be an integer from 1 to 100000");
  CHECK(parse_config(limit + "split = 2\non_failure = \"local\"\n", "allowd.toml"));
}

TEST_CASE("config: a wrong type is said, for every key") {
  const std::string text = ": must be a string";
  for (const char* key : {"socket", "socket_mode", "socket_group", "admin_socket", "deadline"}) {
    for (const char* value : {"1", "true", "[]", "{}", "1.5", "1979-05-27"}) {
      check_refused("[agent]\n" + std::string(key) + " = " + value + "\n",
                    "allowd.toml:2: agent." + std::string(key) + text);
    }
  }
  for (const char* value : {"\"7\"", "true", "1.0", "[]", "0", "-1", "1000001"}) {
    check_refused("[agent]\nmax_connections = " + std::string(value) + "\n",
                  "allowd.toml:2: agent.max_connections: must be an integer from 1 to 1000000");
  }
  for (const char* value : {"\"7\"", "0", "1000000001"}) {
    check_refused("[agent]\nmax_keys = " + std::string(value) + "\n",
                  "allowd.toml:2: agent.max_keys: must be an integer from 1 to 1000000000");
  }
  for (const char* table : {"agent", "redis", "limits"}) {
    check_refused(std::string(table) + " = 1\n",
                  "allowd.toml:1: " + std::string(table) + ": must be a table");
    check_refused("[[" + std::string(table) + "]]\n",
                  "allowd.toml:1: " + std::string(table) + ": must be a table");
  }
  check_refused("[limits]\napi = \"100/s\"\n", "allowd.toml:2: limits.api: must be a table");
  check_refused("[redis]\nurl = 1\n", "allowd.toml:2: redis.url" + text);
  check_refused("[redis]\nurl = \"redis://h\"\nreconnect_max = 5\n",
                "allowd.toml:3: redis.reconnect_max" + text);
  check_refused("[limits.api]\nrate = 100\n", "allowd.toml:2: limits.api.rate" + text);
  check_refused("[limits.api]\nrate = \"1/s\"\nburst = \"5\"\n",
                "allowd.toml:3: limits.api.burst: must be an integer from 1 to 4503599627370496");
  check_refused("[limits.api]\nrate = \"1/s\"\nburst = 0\n",
                "allowd.toml:3: limits.api.burst: must be an integer from 1 to 4503599627370496");
  check_refused("[limits.api]\nrate = \"1/s\"\non_failure = true\n",
                "allowd.toml:3: limits.api.on_failure" + text);
}

TEST_CASE("config: a wrong value is said") {
  const std::string mode =
      "allowd.toml:2: agent.socket_mode: must be an octal mode in a string, like \"0660\"";
  for (const char* value : {"", "66", "0888", "660 ", "1777", "00660", "rw-rw----", "-660"})
    check_refused("[agent]\nsocket_mode = \"" + std::string(value) + "\"\n", mode);
  CHECK(parsed("[agent]\nsocket_mode = \"777\"\n").agent.socket_mode == 0777);
  CHECK(parsed("[agent]\nsocket_mode = \"0000\"\n").agent.socket_mode == 0);

  check_refused("[agent]\nsocket = \"\"\n", "allowd.toml:2: agent.socket: must not be empty");
  check_refused("[agent]\nsocket_group = \"\"\n", "allowd.toml:2: agent.socket_group: must not be empty");
  check_refused("[agent]\nadmin_socket = \"/a\\u0000b\"\n",
                "allowd.toml:2: agent.admin_socket: must not contain a NUL");
  check_refused("[agent]\nsocket = \"/" + std::string(107, 'x') + "\"\n",
                "allowd.toml:2: agent.socket: is 108 bytes long; a socket's path may have 107");
  CHECK(parsed("[agent]\nsocket = \"/" + std::string(106, 'x') + "\"\n").agent.socket.size() == 107);

  check_refused(
      "[agent]\ndeadline = \"20\"\n",
      "allowd.toml:2: agent.deadline: a duration needs a unit: us, ms, s (sec, second), m (min, minute), h "
      "(hour), d (day) or week");
  check_refused("[redis]\nprefix = \"a\"\n",
                "allowd.toml:1: redis: url, shards, cluster or sentinel is missing");
  check_refused("[redis]\nurl = \"http://h\"\n",
                "allowd.toml:2: redis.url: a Redis URL begins with redis://, rediss:// or unix://");
  const std::string prefix =
      "allowd.toml:3: redis.prefix: must be 1 to 64 printable ASCII characters without braces, colons and "
      "spaces";
  for (const std::string& value :
       {std::string(), std::string(65, 'p'), std::string("a b"), std::string("a:b"), std::string("{a"),
        std::string("a}"), std::string("é"), std::string("a\\u007f")})
    check_refused("[redis]\nurl = \"redis://h\"\nprefix = \"" + value + "\"\n", prefix);

  check_refused("[limits.api]\n", "allowd.toml:1: limits.api: rate is missing");
  check_refused("[limits.api]\nburst = 5\n", "allowd.toml:1: limits.api: rate is missing");
  check_refused("[limits.api]\nrate = \"100\"\n",
                "allowd.toml:2: limits.api.rate: a rate is a count per time, like \"100/s\", \"5/10s\" or "
                "\"1000/day\"");
  check_refused("[limits.api]\nrate = \"1/s\"\nalgorithm = \"leaky\"\n",
                "allowd.toml:3: limits.api.algorithm: must be token_bucket, fixed_window, sliding_window, "
                "sliding_log or "
                "counter");
  check_refused("[limits.api]\nrate = \"1/s\"\nalgorithm = \"fixed_windw\"\n",
                "allowd.toml:3: limits.api.algorithm: must be token_bucket, fixed_window, sliding_window, "
                "sliding_log or "
                "counter; did you mean fixed_window?");
  check_refused("[limits.api]\nrate = \"1/s\"\non_failure = \"open\"\n",
                "allowd.toml:3: limits.api.on_failure: must be \"allow\", \"deny\" or \"local\"");
  const std::string name = "a limit's name must have 1 to 128 bytes and no control characters";
  check_refused("[limits.\"\"]\nrate = \"1/s\"\n", "allowd.toml:1: limits.: " + name);
  const std::string long_name(129, 'n');
  check_refused("[limits." + long_name + "]\nrate = \"1/s\"\n",
                "allowd.toml:1: limits." + long_name + ": " + name);
  check_refused("[limits.\"a\\nb\"]\nrate = \"1/s\"\n", "allowd.toml:1: limits.a\nb: " + name);
  CHECK(parsed("[limits." + std::string(128, 'n') + "]\nrate = \"1/s\"\n").limits[0].name.size() == 128);
}

TEST_CASE("config: a limit cannot have the name under which those of applications are counted") {
  check_refused(
      "[limits.inline]\nrate = \"1/s\"\n",
      "allowd.toml:1: limits.inline: is reserved: limits that applications define are counted under it");
}

TEST_CASE("config: a limit that cannot be counted exactly is refused at the key that makes it so") {
  auto by_rate = parse_config("[limits.api]\nrate = \"999999999989/day\"\n", "f");
  REQUIRE_FALSE(by_rate);
  CHECK(by_rate.error().message.starts_with("f:2: limits.api.rate: "));
  CHECK(by_rate.error().message.find("2^52") != std::string::npos);
  auto by_burst = parse_config("[limits.api]\nrate = \"1/day\"\nburst = 1000000000000000\n", "f");
  REQUIRE_FALSE(by_burst);
  CHECK(by_burst.error().message.starts_with("f:3: limits.api.burst: "));
  CHECK(parsed("[limits.api]\nrate = \"1000000/day\"\n").limits[0].definition->bucket().burst() == 1'000'000);
}

TEST_CASE("config: a key that stands twice, or no TOML at all, is refused with its line") {
  for (const auto& [text, line] : std::vector<std::pair<std::string, std::string>>{
           {"[agent]\nmax_keys = 1\nmax_keys = 2\n", "3"},
           {"[agent]\n\n[agent]\n", "3"},
           {"[limits.api]\nrate = \"1/s\"\n[limits.api]\nrate = \"1/s\"\n", "3"},
           {"[agent\n", "1"},
           {"[agent]\nsocket = \"/a\n", "2"},
           {"nonsense\n", "1"},
           {"[agent]\nsocket = /a\n", "2"},
           {"\xff\xfe", "1"}}) {
    CAPTURE(text);
    auto config = parse_config(text, "my.toml");
    CHECK_FALSE(config);
    if (!config) CHECK(config.error().message.starts_with("my.toml:" + line + ": "));
  }
}

TEST_CASE("config: no message repeats a password") {
  for (const char* text :
       {"[redis]\nurl = \"redis://u:s3cr3t@h:x\"\n", "[redis]\nurl = \"redis://u:s3cr3t@\"\n",
        "[redis]\nurl = \"redis://u:s3cr3t@h\n", "[redis]\nurl = redis://u:s3cr3t@h\n",
        "[redis]\nurl = \"redis://u:s3cr3t@h\"\nurl = \"redis://u:s3cr3t@h\"\n",
        "[redis]\nurl = [\"redis://u:s3cr3t@h\"]\n"}) {
    CAPTURE(text);
    auto config = parse_config(text, "f");
    REQUIRE_FALSE(config);
    CHECK(config.error().message.find("s3cr3t") == std::string::npos);
  }
}

TEST_CASE("config: a file is read, and one that cannot be is an error that names it") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "allowd.toml";
  std::ofstream(path) << "[agent]\nmax_keys = 5\n";
  auto config = load_config(path);
  REQUIRE(config);
  CHECK(config->agent.max_keys == 5);

  auto missing = load_config(directory / "none.toml");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message == directory / "none.toml" + ": cannot be read");

  std::ofstream(path) << "[agent]\n\nmax_keys = 0\n";
  auto wrong = load_config(path);
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message.starts_with(path + ":3: agent.max_keys: "));
}

TEST_CASE("config: a directory in place of a file is an error, not an empty configuration") {
  const testing::TemporaryDirectory directory;
  auto config = load_config(directory.path());
  CHECK_FALSE(config);
  if (!config) CHECK(config.error().message.starts_with(directory.path() + ": "));
}

TEST_CASE("config: one limit's table alone is read as replay needs it") {
  auto limit = parse_limit("rate = \"5/s\"\nburst = 7\n", "api");
  REQUIRE(limit);
  CHECK(limit->name == "api");
  CHECK(limit->definition->bucket().burst() == 7);
  CHECK(limit->deadline == 20ms);
  auto wrong = parse_limit("rate = \"5/s\"\nbrust = 7\n", "api");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message == "api:2: brust: unknown key; did you mean burst?");
  auto missing = parse_limit("", "api");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message.find("rate is missing") != std::string::npos);
}

const LimitConfig& only(const Config& config) {
  REQUIRE(config.limits.size() == 1);
  return config.limits[0];
}

TEST_CASE("config: every algorithm can be chosen") {
  const auto algorithm_of = [](const std::string& rest) {
    const Config config = parsed("[limits.api]\nrate = \"5/min\"\n" + rest);
    return only(config).definition->tiers()[0].algorithm;
  };
  CHECK(std::get<limiter::TokenBucket>(algorithm_of("")).burst() == 5);
  CHECK(std::get<limiter::TokenBucket>(algorithm_of("algorithm = \"token_bucket\"\nburst = 9\n")).burst() ==
        9);
  using limiter::FixedWindow;
  const auto fixed = [&](const std::string& rest) {
    return std::get<FixedWindow>(algorithm_of("algorithm = \"fixed_window\"\n" + rest)).align();
  };
  CHECK(fixed("") == FixedWindow::Align::first);
  CHECK(fixed("align = \"first\"\n") == FixedWindow::Align::first);
  CHECK(fixed("align = \"clock\"\n") == FixedWindow::Align::clock);
  CHECK(std::get<limiter::SlidingWindow>(algorithm_of("algorithm = \"sliding_window\"\n")).rate().count == 5);
  CHECK(std::get<limiter::SlidingLog>(algorithm_of("algorithm = \"sliding_log\"\n")).rate().period == 1min);
  CHECK(std::get<limiter::Counter>(algorithm_of("algorithm = \"counter\"\n")).rate().count == 5);
}

TEST_CASE("config: what an algorithm does not take is refused") {
  const std::string head = "[limits.api]\nrate = \"5/min\"\nalgorithm = ";
  for (const char* window : {"fixed_window", "sliding_window", "sliding_log", "counter"}) {
    check_refused(
        head + "\"" + window + "\"\nburst = 9\n",
        "allowd.toml:4: limits.api.burst: is for token_bucket only; a window holds its rate's count");
  }
  for (const char* other : {"token_bucket", "sliding_window", "sliding_log", "counter"}) {
    check_refused(head + "\"" + other + "\"\nalign = \"clock\"\n",
                  "allowd.toml:4: limits.api.align: is for fixed_window only");
  }
  check_refused(head + "\"fixed_window\"\nalign = \"utc\"\n",
                "allowd.toml:4: limits.api.align: must be \"first\" or \"clock\"");
  check_refused(
      "[limits.api]\nrate = \"1001/min\"\nalgorithm = \"sliding_log\"\n",
      "allowd.toml:2: limits.api.rate: a sliding_log holds 1 to 1000 permits; a sliding_window holds more");
  check_refused(head + "\"counter\"\nrefund = true\n",
                "allowd.toml:4: limits.api.refund: a counter cannot give back");
}

TEST_CASE("config: tiers keep their order, names and algorithms") {
  const Config config = parsed(
      "[limits.login]\ntiers = [ { name = \"second\", rate = \"5/s\", burst = 9 },\n"
      "{ name = \"day\", rate = \"1000/day\", algorithm = \"fixed_window\", align = \"clock\", shadow = true "
      "} ]\n");
  const auto& tiers = only(config).definition->tiers();
  REQUIRE(tiers.size() == 2);
  CHECK(tiers[0].name == "second");
  CHECK(tiers[0].capacity() == 9);
  CHECK_FALSE(tiers[0].shadow);
  CHECK(tiers[1].name == "day");
  CHECK(tiers[1].shadow);
  CHECK(tiers[1].identity() == "a86400000000:day");
}

TEST_CASE("config: tiers that cannot be are refused where they stand") {
  const auto refused = [](const std::string& tiers, const std::string& message) {
    check_refused("[limits.x]\ntiers = [ " + tiers + " ]\n", "allowd.toml:2: limits.x.tiers" + message);
  };
  refused("", ": there must be at least one tier");
  refused("{ rate = \"1/s\" }", "[0]: name is missing");
  refused("{ name = \"a\" }", "[0]: rate is missing");
  refused("{ name = \"\", rate = \"1/s\" }", "[0].name: must have 1 to 128 bytes and no control characters");
  refused("{ name = \"overflow\", rate = \"1/s\" }",
          ": a tier cannot be named overflow: what the overflow bucket decides is");
  refused("{ name = \"a\", rate = \"1/s\" }, { name = \"a\", rate = \"2/s\" }",
          ": two tiers are named \"a\"");
  refused("{ name = \"a\", rate = \"1/s\", algorithm = \"sliding_log\" }",
          ": sliding_log cannot be a tier; it stands alone");
  refused("{ name = \"a\", rate = \"1/s\", algorithm = \"counter\" }",
          ": counter cannot be a tier; it stands alone");
  refused("{ name = \"a\", rate = \"1/s\", tiers = [] }", "[0].tiers: unknown key");
  check_refused("[limits.x]\ntiers = [ { name = \"a\", rate = \"1/s\" } ]\nrate = \"1/s\"\n",
                "allowd.toml:3: limits.x.rate: cannot stand beside tiers: each tier has its own");
  check_refused("[limits.x]\ntiers = [ 1 ]\n", "allowd.toml:2: limits.x.tiers: must be an array of tables");
  std::string nine;
  for (int i = 0; i < 9; ++i) nine += "{ name = \"" + std::to_string(i) + "\", rate = \"1/s\" }, ";
  refused(nine, ": there may be at most 8 tiers");
}

TEST_CASE("config: overrides are sorted so that the first that matches is the longest") {
  const Config config = parsed(
      "[limits.api]\nrate = \"1/s\"\noverrides = { \"a*\" = { deny = true }, \"abc*\" = { unlimited = true "
      "}, "
      "\"abc\" = { rate = \"9/s\" }, \"*\" = { rate = \"2/s\", shadow = true } }\n");
  const auto& overrides = only(config).overrides;
  REQUIRE(overrides.size() == 4);
  CHECK(overrides[0].key == "abc");
  CHECK_FALSE(overrides[0].is_prefix);
  CHECK(overrides[0].definition->bucket().burst() == 9);
  CHECK(overrides[1].key == "abc");
  CHECK(overrides[1].is_prefix);
  CHECK(overrides[1].kind == Override::Kind::unlimited);
  CHECK(overrides[2].kind == Override::Kind::deny);
  CHECK(overrides[3].key.empty());
  CHECK(overrides[3].definition->is_shadow());
}

TEST_CASE("config: overrides that cannot be are refused") {
  const auto refused = [](const std::string& override, const std::string& message) {
    check_refused("[limits.x]\nrate = \"1/s\"\n[limits.x.overrides]\n" + override + "\n",
                  "allowd.toml:4: limits.x.overrides." + message);
  };
  refused("k = { unlimited = true, rate = \"1/s\" }", "k.unlimited: stands alone");
  refused("k = { deny = false }", "k.deny: may only be true");
  refused("k = { deny = 1 }", "k.deny: must be true or false");
  refused("k = { }", "k: rate is missing");
  refused("k = { rate = \"0/s\" }", "k.rate: a rate must be at least 1 per period");
  refused("\"a*b\" = { deny = true }", "a*b: a star may stand at the end only");
  refused("k = { scope = \"host\" }", "k.scope: unknown key");
}

TEST_CASE("config: a plan changes numbers and nothing else") {
  const Config config =
      parsed("[limits.x]\nrate = \"1/s\"\nplans = { pro = { rate = \"50/min\", burst = 9 } }\n");
  CHECK(only(config).plans.at(0).name == "pro");
  CHECK(only(config).plans.at(0).definition->bucket().burst() == 9);
  const std::string same =
      ": must have the limit's own algorithm, windows and tiers: a plan changes numbers, the state is the "
      "same";
  check_refused(
      "[limits.x]\nrate = \"1/s\"\n[limits.x.plans]\np = { rate = \"1/s\", algorithm = \"fixed_window\" }\n",
      "allowd.toml:4: limits.x.plans.p" + same);
  check_refused(
      "[limits.x]\nrate = \"1/s\"\nalgorithm = \"fixed_window\"\n[limits.x.plans]\n"
      "p = { rate = \"1/min\", algorithm = \"fixed_window\" }\n",
      "allowd.toml:5: limits.x.plans.p" + same);
}

TEST_CASE("config: a plan's name has bounds and no control characters, as a limit's") {
  const auto with_plan = [](const std::string& name) {
    return "[limits.x]\nrate = \"1/s\"\n[limits.x.plans]\n\"" + name + "\" = { rate = \"2/s\" }\n";
  };
  const auto refused = [&](const std::string& name, const std::string& shown) {
    check_refused(with_plan(name), "allowd.toml:4: limits.x.plans." + shown +
                                       ": a plan's name must have 1 to 128 bytes and no control characters");
  };
  refused("", "");
  refused("a\\nb", "a\nb");
  refused("a\\u007f", "a\x7f");
  refused(std::string(129, 'p'), std::string(129, 'p'));
  CHECK(only(parsed(with_plan(std::string(128, 'p')))).plans.size() == 1);
}

TEST_CASE("config: shadow for the whole agent holds for every limit and its overrides") {
  const std::string limits = "[limits.x]\nrate = \"1/s\"\noverrides = { k = { rate = \"2/s\" } }\n";
  const Config off = parsed(limits), on = parsed("[agent]\nshadow = true\n" + limits);
  CHECK_FALSE(only(off).definition->is_shadow());
  CHECK(only(on).definition->is_shadow());
  CHECK(only(on).overrides[0].definition->is_shadow());
}

TEST_CASE("config: limits that fit only in ticks are counted so, and check says it") {
  const Config config = parsed("[limits.day]\nrate = \"999983/day\"\n");
  CHECK(only(config).definition->bucket().tick() == 100us);
  CHECK(to_toml(config).find("# this limit: time counts in ticks of 100us\n") != std::string::npos);
  CHECK(to_toml(parsed("[limits.day]\nrate = \"1000000/day\"\n")).find("ticks") == std::string::npos);
}

TEST_CASE("config: a budget of new keys, and the bucket that the others share") {
  const config::Config config = parsed(
      "[limits.x]\nrate = \"1/s\"\nmax_new_keys_per_second = 500\noverflow = { rate = \"20/s\", burst = 40 "
      "}\n");
  CHECK(only(config).max_new_keys_per_second == 500);
  REQUIRE(only(config).overflow);
  CHECK(only(config).overflow->bucket().burst() == 40);
  CHECK_FALSE(only(config).overflow->is_shadow());
  CHECK(to_toml(config).find("max_new_keys_per_second = 500\noverflow = { rate = \"20/s\", burst = 40 }\n") !=
        std::string::npos);
  CHECK(to_toml(parsed(to_toml(config))) == to_toml(config));

  const config::Config without = parsed("[limits.x]\nrate = \"1/s\"\n");
  CHECK(only(without).max_new_keys_per_second == 0);
  CHECK_FALSE(only(without).overflow);
  CHECK(hash_of(without) != hash_of(config));

  // A limit that only watches refuses nothing by way of what its keys share.
  CHECK(only(parsed("[limits.x]\nrate = \"1/s\"\nshadow = true\noverflow = { rate = \"1/s\" }\n"))
            .overflow->is_shadow());
  for (const char* algorithm : {"fixed_window", "sliding_window", "sliding_log", "counter"}) {
    CHECK(
        only(parsed("[limits.x]\nrate = \"1/s\"\nmax_new_keys_per_second = 1\noverflow = { rate = \"2/s\" }\n"
                    "algorithm = \"" +
                    std::string(algorithm) + "\"\n"))
            .overflow->bucket()
            .burst() == 2);
  }
}

TEST_CASE("config: a budget of new keys that means nothing is refused") {
  const std::string range = "limits.x.max_new_keys_per_second: must be an integer from 1 to 1000000";
  for (const char* value : {"0", "-1", "1000001", "1.5", "\"5\"", "\"5/s\""}) {
    check_refused("[limits.x]\nrate = \"1/s\"\nmax_new_keys_per_second = " + std::string(value) + "\n",
                  "allowd.toml:3: " + range);
  }
  const auto check_overflow = [](const std::string& value, const std::string& reason) {
    check_refused("[limits.x]\nrate = \"1/s\"\noverflow = " + value + "\n",
                  "allowd.toml:3: limits.x.overflow" + reason);
  };
  check_overflow("\"1/s\"", ": must be a table");
  check_overflow("{}", ": rate is missing");
  check_overflow("{ burst = 5 }", ": rate is missing");
  check_overflow("{ rate = \"1/s\", burst = 0 }",
                 ".burst: must be an integer from 1 to " + std::to_string(limiter::kMaxUsed));
  check_overflow("{ rate = \"1/s\", algorithm = \"fixed_window\" }", ".algorithm: unknown key");
  check_overflow("{ rate = \"1/s\", shadow = true }", ".shadow: unknown key");
}

}  // namespace
}  // namespace allowd::config
