// SPDX-License-Identifier: MIT
//
// The configuration as checked values. CONFIG.md describes every option; a test holds the two together.
//
// Strict: an unknown or repeated key, a wrong type or unit, a value out of range is an error that names file,
// line and key. What later versions will have is named as not supported rather than as unknown.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/config/redis_config.h"
#include "agent/limiter/definition.h"
#include "agent/result/result.h"

namespace allowd::config {

// What answers when the store cannot.
enum class FailurePolicy : std::uint8_t { allow, deny, local };
[[nodiscard]] std::string_view name_of(FailurePolicy policy);

struct AgentConfig {
  std::string socket;  // empty: found by the rules in OPERATING.md
  std::uint32_t socket_mode = 0660;
  std::string socket_group;  // empty: the process's own
  std::string admin_socket;  // empty: derived from the socket
  std::int64_t max_connections = 1024;
  std::int64_t max_keys = 262'144;
  limiter::Micros deadline = std::chrono::milliseconds(20);
  bool shadow = false;  // every limit only watches
};

// What is known of keys on this host, in front of Redis.
struct PrefilterConfig {
  limiter::Micros trust = std::chrono::seconds(1);        // how long after Redis last spoke of a key
  limiter::Micros hold = std::chrono::milliseconds(100);  // at most, between questions about a contended key
};

// What decides about certain keys in place of the limit's own definition.
struct Override {
  enum class Kind : std::uint8_t { definition, unlimited, deny };

  std::string key;         // without the star
  bool is_prefix = false;  // `key*`: all that begin so
  Kind kind = Kind::definition;
  limiter::DefinitionPtr definition;  // of that kind
};

// Other numbers for the same state, chosen by the caller.
struct Plan {
  std::string name;
  limiter::DefinitionPtr definition;
};

// How much may be taken ahead of a hot key's demand: a part of the burst, or a number of permits.
struct LeaseSize {
  std::int64_t amount = 0;  // 0: nothing
  bool is_percent = false;

  // Of a bucket that holds `burst`; 0 for other limits.
  [[nodiscard]] std::int64_t permits(const limiter::Definition& definition) const;
  [[nodiscard]] std::string print() const;
};

// A bucket in so many smaller ones, the largest first, that together are no more than it; none for other
// limits and for one part. Fails where a part could not be counted exactly.
[[nodiscard]] Result<std::vector<limiter::DefinitionPtr>> parts_of(const limiter::Definition& definition,
                                                                   std::int64_t parts);

struct LimitConfig {
  std::string name;
  limiter::DefinitionPtr definition;  // never null
  std::vector<Override> overrides;    // the longest first
  std::vector<Plan> plans;            // in the order of their names
  bool is_host_wide = false;          // scope = "host": kept in memory even with Redis
  bool may_refund = false;            // by applications
  LeaseSize lease;
  std::int64_t split = 1;                    // into so many parts, each on a server of its own
  std::int64_t max_new_keys_per_second = 0;  // on this host; 0: any number
  limiter::DefinitionPtr overflow;           // of the bucket that the others share; null: as `definition`
  FailurePolicy on_failure = FailurePolicy::allow;
  std::int64_t local_share = 0;  // of `local`: between so many agents; 0: as many as there are known to be
  limiter::Micros deadline;      // the agent's unless the limit has its own
};

inline constexpr std::int64_t kMostNewKeysPerSecond = 1'000'000;

struct Config {
  AgentConfig agent;
  std::optional<RedisConfig> redis;  // none: the memory store
  PrefilterConfig prefilter;
  std::vector<LimitConfig> limits;  // in the order of their names
};

// `file` is for messages only. Errors read "file:line: key: reason".
[[nodiscard]] Result<Config> parse_config(std::string_view text, std::string_view file);
[[nodiscard]] Result<Config> load_config(const std::string& path);

// One rate as an application sends it; what is empty has its default.
struct InlineRate {
  std::string_view tier;  // "" if the limit has no tiers
  std::string_view rate;
  std::string_view algorithm;
  std::string_view align;
  std::optional<std::int64_t> burst;
};
// Of a limit of that name.
[[nodiscard]] Result<limiter::DefinitionPtr> make_definition(std::string_view name,
                                                             std::span<const InlineRate> rates, bool shadow);

// One limit's table alone, as JSON lines bring them to `replay`: {"rate": "5/s", "burst": 5}.
[[nodiscard]] Result<LimitConfig> parse_limit(std::string_view toml, std::string_view name);

// The effective configuration as TOML, every default written out, passwords left out.
[[nodiscard]] std::string to_toml(const Config& config);
// Sixteen hex digits that change with to_toml.
[[nodiscard]] std::string hash_of(const Config& config);

}  // namespace allowd::config
