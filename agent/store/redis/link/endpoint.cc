// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/endpoint.h"

#include <charconv>
#include <optional>

namespace allowd::store {
namespace {

constexpr std::size_t kMaxUnixPathBytes = 107;  // sockaddr_un, less its terminator
constexpr int kMaxDb = 1'000'000;

Error bad(std::string message) { return {Error::Code::bad_request, std::move(message)}; }

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned value = 0;
    if (i + 2 >= text.size()) return std::nullopt;
    const auto [end, problem] = std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16);
    if (problem != std::errc() || end != text.data() + i + 3) return std::nullopt;
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

// The reverse, for what would be read as something else.
std::string percent_encode(std::string_view text, std::string_view special) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte < 0x7f && c != '%' && special.find(c) == std::string_view::npos) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 0xf]};
    }
  }
  return out;
}

// Splits "user:password@rest" off the front.
Failure take_credentials(std::string_view& rest, RedisEndpoint& endpoint) {
  const std::size_t authority_end = rest.find_first_of("/?");
  const std::size_t at = rest.substr(0, authority_end).rfind('@');
  if (at == std::string_view::npos) return {};
  const std::string_view credentials = rest.substr(0, at);
  const std::size_t colon = credentials.find(':');
  const auto user = percent_decode(credentials.substr(0, colon));
  const auto password =
      percent_decode(colon == std::string_view::npos ? std::string_view() : credentials.substr(colon + 1));
  if (!user || !password) return bad("a percent sign must be followed by two hex digits");
  endpoint.user = *user;
  endpoint.password = *password;
  rest.remove_prefix(at + 1);
  return {};
}

Failure read_db(std::string_view text, RedisEndpoint& endpoint) {
  if (!read_number(text, endpoint.db) || endpoint.db < 0 || endpoint.db > kMaxDb) {
    return bad("the database must be a number, as in /0");
  }
  return {};
}

Failure read_unix(std::string_view rest, RedisEndpoint& endpoint) {
  if (auto problem = take_credentials(rest, endpoint)) return problem;
  const std::size_t question = rest.find('?');
  const auto path = percent_decode(rest.substr(0, question));
  if (!path || path->empty() || path->front() != '/') return bad("unix:// needs an absolute path");
  if (path->size() > kMaxUnixPathBytes) return bad("the socket path is over 107 bytes");
  endpoint.unix_path = *path;
  if (question == std::string_view::npos) return {};
  const std::string_view query = rest.substr(question + 1);
  if (!query.starts_with("db=")) return bad("after ? only db=N may stand");
  return read_db(query.substr(3), endpoint);
}

Failure read_tcp(std::string_view rest, RedisEndpoint& endpoint) {
  if (auto problem = take_credentials(rest, endpoint)) return problem;
  const std::size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  std::string_view port;
  if (authority.starts_with('[')) {
    const std::size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) return bad("an IPv6 address must end with ]");
    port = authority.substr(bracket + 1);
    authority = authority.substr(1, bracket - 1);
    if (!port.empty() && port.front() != ':') return bad("after ] only :port may stand");
  } else if (const std::size_t colon = authority.rfind(':'); colon != std::string_view::npos) {
    port = authority.substr(colon);
    authority = authority.substr(0, colon);
    if (authority.find(':') != std::string_view::npos) return bad("an IPv6 address must stand in brackets");
  }
  const auto host = percent_decode(authority);
  if (!host || host->empty()) return bad("the host is missing");
  endpoint.host = *host;
  if (!port.empty() && (!read_number(port.substr(1), endpoint.port) || endpoint.port == 0)) {
    return bad("the port must be a number from 1 to 65535");
  }
  if (slash == std::string_view::npos || slash + 1 == rest.size()) return {};
  return read_db(rest.substr(slash + 1), endpoint);
}

}  // namespace

std::string RedisEndpoint::display() const {
  if (!unix_path.empty()) {
    return "unix://" + percent_encode(unix_path, "?@") + (db != 0 ? "?db=" + std::to_string(db) : "");
  }
  const bool is_ipv6 = host.find(':') != std::string::npos;
  const std::string shown =
      is_ipv6 ? "[" + percent_encode(host, "[]/?@") + "]" : percent_encode(host, "[]/?@");
  return (is_tls ? "rediss://" : "redis://") + shown + ":" + std::to_string(port) +
         (db != 0 ? "/" + std::to_string(db) : "");
}

Result<RedisEndpoint> parse_redis_url(std::string_view url, const UrlRules& rules) {
  constexpr std::string_view kTcp = "redis://", kUnix = "unix://", kTls = "rediss://";
  RedisEndpoint endpoint;
  endpoint.port = rules.default_port;
  Failure problem;
  if (url.starts_with(kTcp)) {
    problem = read_tcp(url.substr(kTcp.size()), endpoint);
  } else if (url.starts_with(kUnix)) {
    problem = read_unix(url.substr(kUnix.size()), endpoint);
  } else if (url.starts_with(kTls)) {
    endpoint.is_tls = true;
    problem = read_tcp(url.substr(kTls.size()), endpoint);
  } else {
    problem = bad("a Redis URL begins with redis://, rediss:// or unix://");
  }
  if (!problem && !rules.may_lack_password && !endpoint.user.empty() && endpoint.password.empty()) {
    problem = bad("a user needs a password: user:password@");
  }
  if (problem) return *std::move(problem);
  return endpoint;
}

}  // namespace allowd::store
