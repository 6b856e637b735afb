// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/endpoint.h"

#include <string>
#include <vector>

#include "tests/support/printing.h"

namespace allowd::store {
namespace {

RedisEndpoint parsed(std::string_view url) {
  CAPTURE(url);
  auto endpoint = parse_redis_url(url);
  REQUIRE(endpoint);
  return *endpoint;
}

void check_refused(std::string_view url, std::string_view reason) {
  CAPTURE(url);
  auto endpoint = parse_redis_url(url);
  CHECK_FALSE(endpoint);
  if (endpoint) return;
  CHECK(endpoint.error().code == Error::Code::bad_request);
  CHECK(endpoint.error().message == reason);
}

TEST_CASE("redis url: host, port and database") {
  const RedisEndpoint plain = parsed("redis://10.0.0.1");
  CHECK(plain.host == "10.0.0.1");
  CHECK(plain.port == 6379);
  CHECK(plain.db == 0);
  CHECK(plain.user.empty());
  CHECK(plain.password.empty());
  CHECK(plain.unix_path.empty());

  const RedisEndpoint full = parsed("redis://cache.example:6380/15");
  CHECK(full.host == "cache.example");
  CHECK(full.port == 6380);
  CHECK(full.db == 15);
  CHECK(parsed("redis://h/").db == 0);
  CHECK(parsed("redis://h:1").port == 1);
  CHECK(parsed("redis://h:65535").port == 65535);
}

TEST_CASE("redis url: user and password, percent-encoded or not") {
  const RedisEndpoint both = parsed("redis://app:secret@h");
  CHECK(both.user == "app");
  CHECK(both.password == "secret");
  CHECK(both.host == "h");
  const RedisEndpoint password = parsed("redis://:secret@h:1/2");
  CHECK(password.user.empty());
  CHECK(password.password == "secret");
  CHECK(password.port == 1);
  CHECK(password.db == 2);
  CHECK(parsed("redis://u:a%40b%3a%2F%25@h").password == "a@b:/%");
  CHECK(parsed("redis://u%3Av:p@h").user == "u:v");
  CHECK(parsed("redis://u:p:q@h").password == "p:q");
  CHECK(parsed("redis://u:p@q@h").password == "p@q");
  CHECK(parsed("redis://:@h").password.empty());
  CHECK(parsed("redis://:p%00q@h").password == std::string("p\0q", 3));
}

TEST_CASE("redis url: rediss:// is the same over TLS") {
  const RedisEndpoint full = parsed("rediss://app:secret@cache.example:6380/15");
  CHECK(full.is_tls);
  CHECK(full.host == "cache.example");
  CHECK(full.port == 6380);
  CHECK(full.db == 15);
  CHECK(full.user == "app");
  CHECK(full.password == "secret");
  CHECK(parsed("rediss://h").port == 6379);
  CHECK_FALSE(parsed("redis://h").is_tls);
  CHECK_FALSE(parsed("unix:///r.sock").is_tls);
}

TEST_CASE("redis url: an IPv6 address stands in brackets") {
  const RedisEndpoint loopback = parsed("redis://[::1]");
  CHECK(loopback.host == "::1");
  CHECK(loopback.port == 6379);
  const RedisEndpoint full = parsed("redis://u:p@[2001:db8::1]:6380/3");
  CHECK(full.host == "2001:db8::1");
  CHECK(full.port == 6380);
  CHECK(full.db == 3);
  check_refused("redis://::1", "an IPv6 address must stand in brackets");
  check_refused("redis://[::1", "an IPv6 address must end with ]");
  check_refused("redis://[::1]6379", "after ] only :port may stand");
  check_refused("redis://[]", "the host is missing");
}

TEST_CASE("redis url: a Unix socket by its absolute path") {
  const RedisEndpoint plain = parsed("unix:///run/redis/redis.sock");
  CHECK(plain.unix_path == "/run/redis/redis.sock");
  CHECK(plain.host.empty());
  const RedisEndpoint full = parsed("unix://u:p@/run/r.sock?db=5");
  CHECK(full.unix_path == "/run/r.sock");
  CHECK(full.user == "u");
  CHECK(full.password == "p");
  CHECK(full.db == 5);
  CHECK(parsed("unix:///a%20b").unix_path == "/a b");
  CHECK(parsed("unix:///a@b").unix_path == "/a@b");
  CHECK(parsed("unix:///" + std::string(106, 'x')).unix_path.size() == 107);
  check_refused("unix:///" + std::string(107, 'x'), "the socket path is over 107 bytes");
  check_refused("unix://run/redis.sock", "unix:// needs an absolute path");
  check_refused("unix://", "unix:// needs an absolute path");
  check_refused("unix:///r.sock?database=1", "after ? only db=N may stand");
  check_refused("unix:///r.sock?", "after ? only db=N may stand");
}

TEST_CASE("redis url: what is wrong is said") {
  check_refused("", "a Redis URL begins with redis://, rediss:// or unix://");
  check_refused("localhost:6379", "a Redis URL begins with redis://, rediss:// or unix://");
  check_refused("REDIS://h", "a Redis URL begins with redis://, rediss:// or unix://");
  check_refused("http://h", "a Redis URL begins with redis://, rediss:// or unix://");
  check_refused("rediss:///r.sock", "the host is missing");
  check_refused("redis://", "the host is missing");
  check_refused("redis:///1", "the host is missing");
  check_refused("redis://u:p@", "the host is missing");
  const std::string_view port = "the port must be a number from 1 to 65535";
  for (const char* url : {"redis://h:", "redis://h:0", "redis://h:65536", "redis://h:-1", "redis://h:+1",
                          "redis://h:6379x", "redis://h: 6379", "redis://h:99999999999"})
    check_refused(url, port);
  const std::string_view database = "the database must be a number, as in /0";
  for (const char* url :
       {"redis://h/x", "redis://h/-1", "redis://h/1/2", "redis://h/1000001", "redis://h/99999999999",
        "redis://h/0?x=1", "unix:///r?db=", "unix:///r?db=x", "unix:///r?db=-1", "unix:///r?db=1&x=2"})
    check_refused(url, database);
  for (const char* url :
       {"redis://u:%@h", "redis://u:%4@h", "redis://u:%zz@h", "redis://%:p@h", "redis://u:%+1@h"})
    check_refused(url, "a percent sign must be followed by two hex digits");
  check_refused("redis://user@h", "a user needs a password: user:password@");
  check_refused("redis://user:@h", "a user needs a password: user:password@");
}

TEST_CASE("redis url: what is shown names the place and never user or password") {
  const std::vector<std::pair<std::string, std::string>> shown = {
      {"redis://h", "redis://h:6379"},
      {"redis://hugo:s3cr3t@h:1/2", "redis://h:1/2"},
      {"redis://:s3cr3t@[::1]:7", "redis://[::1]:7"},
      {"unix://hugo:s3cr3t@/r.sock?db=3", "unix:///r.sock?db=3"},
      {"unix:///r.sock", "unix:///r.sock"},
      {"redis://hugo:s3cr3t%40x@h", "redis://h:6379"},
      {"rediss://hugo:s3cr3t@h:1/2", "rediss://h:1/2"},
      {"unix:///a%20b%3fc%25", "unix:///a%20b%3fc%25"},
  };
  for (const auto& [url, text] : shown) {
    CHECK(parsed(url).display() == text);
    CHECK(text.find("s3cr3t") == std::string::npos);
  }
}

TEST_CASE("redis url: no message of a refused one repeats its password") {
  for (const char* url : {"redis://u:s3cr3t@", "redis://u:s3cr3t@h:x", "redis://u:s3cr3t/x@h",
                          "redis://:s3cr3t%@h", "redis://u:s3cr3t@h/x", "unix://u:s3cr3t@r.sock",
                          "rediss://u:s3cr3t@h:x", "http://u:s3cr3t@h", "redis://u:s3cr3t@[::1"}) {
    auto endpoint = parse_redis_url(url);
    CAPTURE(url);
    REQUIRE_FALSE(endpoint);
    CHECK(endpoint.error().message.find("s3cr3t") == std::string::npos);
  }
}

TEST_CASE("redis url: what is shown leads to the same place when it is read again") {
  // The effective configuration prints it as the url.
  for (const char* url : {"redis://h", "redis://h:1/2", "redis://[::1]:7/3", "unix:///r.sock",
                          "unix:///r.sock?db=3", "unix:///a%20b", "unix:///a%3Fb", "unix:///a%25b",
                          "redis://a%2Fb:1", "unix:///a@b", "rediss://h", "rediss://[::1]:7/3"}) {
    CAPTURE(url);
    const RedisEndpoint first = parsed(url);
    auto second = parse_redis_url(first.display());
    CHECK(second);
    if (!second) continue;
    CHECK(second->host == first.host);
    CHECK(second->port == first.port);
    CHECK(second->unix_path == first.unix_path);
    CHECK(second->db == first.db);
    CHECK(second->is_tls == first.is_tls);
  }
}

TEST_CASE("endpoint: what a URL leaves out may come from elsewhere") {
  auto endpoint =
      parse_redis_url("redis://hugo@h", {.default_port = kSentinelPort, .may_lack_password = true});
  REQUIRE(endpoint);
  CHECK(endpoint->user == "hugo");
  CHECK(endpoint->password.empty());
  CHECK(endpoint->port == 26379);
  endpoint = parse_redis_url("redis://h:5", {.default_port = kSentinelPort});
  REQUIRE(endpoint);
  CHECK(endpoint->port == 5);
}

}  // namespace
}  // namespace allowd::store
