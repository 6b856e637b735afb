// SPDX-License-Identifier: MIT
#include "agent/config/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <sstream>

#include "agent/config/units.h"

namespace allowd::config {
namespace {

constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxPathBytes = 107;  // sockaddr_un, less its terminator

// Thrown inside this file only; parse_config turns it into an Error.
struct Problem {
  toml::source_region where;
  std::string key;
  std::string reason;
};

// Levenshtein's distance, for "did you mean".
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row.back();
}

std::string nearest(std::string_view name, std::span<const std::string_view> known) {
  constexpr std::size_t kTooFar = 3;
  const auto best = std::min_element(known.begin(), known.end(),
                                     [&](auto a, auto b) { return distance(name, a) < distance(name, b); });
  if (best == known.end() || distance(name, *best) > kTooFar) return "";
  return "; did you mean " + std::string(*best) + "?";
}

// One table of the file: hands out its values by name, typed, and knows how to complain about them.
class Table {
 public:
  Table(const toml::table& table, std::string path) : table_(table), path_(std::move(path)) {}

  // Fails on keys that are in neither list. `later` are features that this version does not have yet.
  void allow_only(std::span<const std::string_view> known,
                  std::span<const std::string_view> later = {}) const {
    for (const auto& [key, node] : table_) {
      const std::string_view name = key.str();
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      if (std::find(later.begin(), later.end(), name) != later.end()) {
        throw Problem{key.source(), full(name), "is not supported by this version"};
      }
      throw Problem{key.source(), full(name), "unknown key" + nearest(name, known)};
    }
  }

  [[nodiscard]] bool has(std::string_view name) const { return table_.contains(name); }
  [[noreturn]] void fail(std::string_view name, std::string reason) const {
    const toml::node* node = table_.get(name);
    throw Problem{node != nullptr ? node->source() : table_.source(), full(name), std::move(reason)};
  }
  [[noreturn]] void fail(std::string reason) const {
    throw Problem{table_.source(), path_, std::move(reason)};
  }

  std::optional<std::string> text(std::string_view name) const {
    const toml::node* node = table_.get(name);
    if (node == nullptr) return std::nullopt;
    const auto* value = node->as_string();
    if (value == nullptr) fail(name, "must be a string");
    return value->get();
  }
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most) const {
    const toml::node* node = table_.get(name);
    if (node == nullptr) return std::nullopt;
    const auto* value = node->as_integer();
    if (value == nullptr || value->get() < least || value->get() > most) {
      fail(name, "must be an integer from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return value->get();
  }
  std::optional<limiter::Micros> duration(std::string_view name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    auto parsed = parse_duration(*value);
    if (!parsed) fail(name, parsed.error().message);
    return *parsed;
  }
  std::optional<Table> table(std::string_view name) const {
    const toml::node* node = table_.get(name);
    if (node == nullptr) return std::nullopt;
    if (node->as_table() == nullptr) fail(name, "must be a table");
    return Table(*node->as_table(), full(name));
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [key, node] : table_) all.emplace_back(key.str());
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  [[nodiscard]] std::string full(std::string_view name) const {
    return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
  }

  const toml::table& table_;
  std::string path_;
};

void check_path(const Table& table, std::string_view name, std::string_view path) {
  if (path.empty()) table.fail(name, "must not be empty");
  if (path.size() > kMaxPathBytes) {
    table.fail(name, "is " + std::to_string(path.size()) + " bytes long; a socket's path may have 107");
  }
  if (path.find('\0') != std::string_view::npos) table.fail(name, "must not contain a NUL");
}

AgentConfig read_agent(const Table& table) {
  constexpr std::array<std::string_view, 7> kKnown = {
      "socket", "socket_mode", "socket_group", "admin_socket", "max_connections", "max_keys", "deadline"};
  constexpr std::array<std::string_view, 1> kLater = {"shadow"};
  table.allow_only(kKnown, kLater);
  AgentConfig agent;
  if (const auto path = table.text("socket")) {
    check_path(table, "socket", *path);
    agent.socket = *path;
  }
  if (const auto path = table.text("admin_socket")) {
    check_path(table, "admin_socket", *path);
    agent.admin_socket = *path;
  }
  if (const auto mode = table.text("socket_mode")) {
    const bool is_octal =
        mode->size() >= 3 && mode->size() <= 4 && mode->find_first_not_of("01234567") == std::string::npos;
    const unsigned long value = is_octal ? std::stoul(*mode, nullptr, 8) : 0;
    if (!is_octal || value > 0777)
      table.fail("socket_mode", "must be an octal mode in a string, like \"0660\"");
    agent.socket_mode = static_cast<std::uint32_t>(value);
  }
  if (const auto group = table.text("socket_group")) {
    if (group->empty()) table.fail("socket_group", "must not be empty");
    agent.socket_group = *group;
  }
  agent.max_connections = table.integer("max_connections", 1, 1'000'000).value_or(agent.max_connections);
  agent.max_keys = table.integer("max_keys", 1, 1'000'000'000).value_or(agent.max_keys);
  agent.deadline = table.duration("deadline").value_or(agent.deadline);
  return agent;
}

RedisConfig read_redis(const Table& table) {
  constexpr std::array<std::string_view, 3> kKnown = {"url", "prefix", "reconnect_max"};
  constexpr std::array<std::string_view, 6> kLater = {"shards", "cluster",       "sentinel",
                                                      "clock",  "password_file", "max_connection_age"};
  table.allow_only(kKnown, kLater);
  RedisConfig redis;
  const auto url = table.text("url");
  if (!url) table.fail("url is missing");
  auto endpoint = store::parse_redis_url(*url);
  if (!endpoint) table.fail("url", endpoint.error().message);
  redis.endpoint = *endpoint;
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
  return redis;
}

FailurePolicy read_policy(const Table& table) {
  const auto policy = table.text("on_failure");
  if (!policy || *policy == "allow") return FailurePolicy::allow;
  if (*policy == "deny") return FailurePolicy::deny;
  if (*policy == "local") table.fail("on_failure", "\"local\" is not supported by this version");
  table.fail("on_failure", "must be \"allow\" or \"deny\"");
}

LimitConfig read_limit(const Table& table, std::string name, limiter::Micros default_deadline) {
  constexpr std::array<std::string_view, 5> kKnown = {"rate", "burst", "algorithm", "on_failure", "deadline"};
  constexpr std::array<std::string_view, 12> kLater = {"tiers",
                                                       "align",
                                                       "shadow",
                                                       "overrides",
                                                       "plans",
                                                       "scope",
                                                       "refund",
                                                       "lease",
                                                       "split",
                                                       "overflow",
                                                       "max_new_keys_per_second",
                                                       "local_share"};
  table.allow_only(kKnown, kLater);
  const auto algorithm = table.text("algorithm").value_or("token_bucket");
  if (algorithm != "token_bucket") {
    constexpr std::array<std::string_view, 4> kLaterAlgorithms = {"fixed_window", "sliding_window",
                                                                  "sliding_log", "counter"};
    const bool comes_later =
        std::find(kLaterAlgorithms.begin(), kLaterAlgorithms.end(), algorithm) != kLaterAlgorithms.end();
    table.fail("algorithm", comes_later ? "\"" + algorithm + "\" is not supported by this version"
                                        : "must be \"token_bucket\"");
  }
  const auto rate_text = table.text("rate");
  if (!rate_text) table.fail("rate is missing");
  auto rate = parse_rate(*rate_text);
  if (!rate) table.fail("rate", rate.error().message);
  constexpr std::int64_t kMost = limiter::kMaxUsed;
  const std::int64_t burst = table.integer("burst", 1, kMost).value_or(rate->count);
  auto bucket = limiter::TokenBucket::make(*rate, burst);
  if (!bucket) table.fail(table.has("burst") ? "burst" : "rate", bucket.error().message);
  return {std::move(name), *bucket, read_policy(table),
          table.duration("deadline").value_or(default_deadline)};
}

void check_name(const Table& limits, const std::string& name) {
  const bool is_printable =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
  if (name.empty() || name.size() > kMaxNameBytes || !is_printable) {
    limits.fail(name, "a limit's name must have 1 to 128 bytes and no control characters");
  }
  if (name == "inline")
    limits.fail(name, "is reserved: limits that applications define are counted under it");
  if (name == "default")
    limits.fail(name, "a limit for names that are not configured is not supported by this version");
}

Config read_config(const toml::table& root) {
  constexpr std::array<std::string_view, 3> kKnown = {"agent", "redis", "limits"};
  constexpr std::array<std::string_view, 1> kLater = {"prefilter"};
  const Table top(root, "");
  top.allow_only(kKnown, kLater);
  Config config;
  if (const auto agent = top.table("agent")) config.agent = read_agent(*agent);
  if (const auto redis = top.table("redis")) config.redis = read_redis(*redis);
  const auto limits = top.table("limits");
  if (!limits) return config;
  for (const std::string& name : limits->names()) {
    check_name(*limits, name);
    config.limits.push_back(read_limit(*limits->table(name), name, config.agent.deadline));
  }
  return config;
}

// Runs `read`, and makes of whatever it throws an Error that names the place.
template <class Read>
auto guarded(std::string_view file, Read read) -> Result<decltype(read())> {
  const auto at = [&](const toml::source_region& where) {
    return std::string(file) + ":" + std::to_string(where.begin.line) + ": ";
  };
  try {
    return read();
  } catch (const toml::parse_error& problem) {
    return Error{Error::Code::bad_request, at(problem.source()) + std::string(problem.description())};
  } catch (const Problem& problem) {
    return Error{Error::Code::bad_request, at(problem.where) + problem.key + ": " + problem.reason};
  }
}

}  // namespace

std::string_view name_of(FailurePolicy policy) { return policy == FailurePolicy::allow ? "allow" : "deny"; }

Result<Config> parse_config(std::string_view text, std::string_view file) {
  return guarded(file, [&] { return read_config(toml::parse(text)); });
}

Result<Config> load_config(const std::string& path) {
  std::error_code problem;
  if (std::filesystem::is_directory(path, problem))
    return Error{Error::Code::system, path + ": is a directory"};
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Error::Code::system, path + ": cannot be read"};
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return Error{Error::Code::system, path + ": cannot be read"};
  return parse_config(text.str(), path);
}

Result<LimitConfig> parse_limit(std::string_view toml, std::string_view name) {
  return guarded(name, [&] {
    const toml::table table = toml::parse(toml);
    return read_limit(Table(table, ""), std::string(name), AgentConfig().deadline);
  });
}

}  // namespace allowd::config
