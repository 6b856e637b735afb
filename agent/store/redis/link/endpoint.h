// SPDX-License-Identifier: MIT
//
// Where a Redis is and how to sign in, read from a URL:
//   redis://[user[:password]@]host[:port][/db]      unix://[user[:password]@]/path/to.sock[?db=N]
//   rediss://..., as redis://, over TLS
// User, password and host may be percent-encoded; an IPv6 address stands in brackets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/result/result.h"

namespace allowd::store {

struct RedisEndpoint {
  std::string host;  // empty for a Unix socket
  std::uint16_t port = 6379;
  std::string unix_path;  // empty for TCP
  std::string user;
  std::string password;
  std::string password_file;  // where the password is read before each connect; empty: it is `password`
  int db = 0;
  bool is_tls = false;

  // For people: no user, no password.
  [[nodiscard]] std::string display() const;

  bool operator==(const RedisEndpoint&) const = default;
};

// One of several independent servers. Its name decides which keys it keeps, whatever its address.
struct RedisNode {
  std::string name;
  RedisEndpoint endpoint;

  bool operator==(const RedisNode&) const = default;
};
// The name of a server that is alone and was given none.
inline constexpr std::string_view kOnlyRedis = "redis";

// Sentinels that watch over one group of servers, and how it is called there.
struct SentinelGroup {
  std::string master;
  std::vector<RedisEndpoint> sentinels;  // with the users and passwords of the sentinels

  bool operator==(const SentinelGroup&) const = default;
};
inline constexpr std::uint16_t kRedisPort = 6379;
inline constexpr std::uint16_t kSentinelPort = 26379;

// Whose time decides about the keys of a server.
enum class ClockSource : std::uint8_t {
  synced,  // the server's, by its measured offset to this host's
  redis,   // the server's, asked by each script itself
  host,    // this host's wall clock
};

// What a URL may leave out.
struct UrlRules {
  std::uint16_t default_port = kRedisPort;
  bool may_lack_password = false;  // beside a user: it comes from elsewhere
};
[[nodiscard]] Result<RedisEndpoint> parse_redis_url(std::string_view url, const UrlRules& rules = {});

}  // namespace allowd::store
