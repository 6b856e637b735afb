// SPDX-License-Identifier: MIT
#include <cstdio>
#include <sstream>
#include <utility>

#include "agent/config/config.h"
#include "agent/config/units.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace allowd::config {
namespace {

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
      out += escape;
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string octal(std::uint32_t mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%04o", mode);
  return text;
}

const char* truth(bool value) { return value ? "true" : "false"; }

// `separator` stands between two keys: a comma in an inline table.
void write_rules(std::ostream& out, const limiter::Tier& tier, const char* separator) {
  out << "algorithm = " << toml_string(name_of(tier.algorithm)) << separator
      << "rate = " << toml_string(print(tier.rate()));
  if (const auto* bucket = std::get_if<limiter::TokenBucket>(&tier.algorithm)) {
    out << separator << "burst = " << bucket->burst();
  } else if (const auto* window = std::get_if<limiter::FixedWindow>(&tier.algorithm)) {
    const bool is_aligned = window->align() == limiter::FixedWindow::Align::clock;
    out << separator << "align = " << (is_aligned ? "\"clock\"" : "\"first\"");
  }
}

// Not a key, so a comment: how coarse time has to be for a tier's numbers to be exact.
void write_ticks(std::ostream& out, const limiter::Definition& definition, std::string_view owner) {
  for (const limiter::Tier& tier : definition.tiers()) {
    limiter::Micros tick{1};
    if (const auto* bucket = std::get_if<limiter::TokenBucket>(&tier.algorithm)) tick = bucket->tick();
    if (const auto* sliding = std::get_if<limiter::SlidingWindow>(&tier.algorithm)) tick = sliding->tick();
    if (tick.count() == 1) continue;
    out << "# " << owner;
    if (!tier.name.empty()) out << ", tier " << toml_string(tier.name);
    out << ": time counts in ticks of " << print(tick) << "\n";
  }
}

void write_sentinel(std::ostream& out, const RedisConfig& redis) {
  out << "sentinel = { master = " << toml_string(redis.sentinel->master) << ", nodes = [";
  const char* before = " ";
  for (const store::RedisEndpoint& sentinel : redis.sentinel->sentinels) {
    out << std::exchange(before, ", ") << toml_string(sentinel.display());
  }
  out << " ]";
  const std::string& file = redis.sentinel->sentinels.front().password_file;
  if (!file.empty()) out << ", password_file = " << toml_string(file);
  out << " }\n";
  if (const int db = redis.nodes.front().endpoint.db; db != 0) out << "db = " << db << "\n";
}

void write_nodes(std::ostream& out, const RedisConfig& redis) {
  if (redis.sentinel) return write_sentinel(out, redis);
  if (!redis.cluster.empty()) {
    out << "cluster = [";
    const char* separator = " ";
    for (const store::RedisEndpoint& seed : redis.cluster)
      out << std::exchange(separator, ", ") << toml_string(seed.display());
    out << " ]\n";
    return;
  }
  if (redis.is_single_url()) {
    out << "url = " << toml_string(redis.nodes.front().endpoint.display()) << "\n";
    return;
  }
  out << "shards = [";
  const char* before = " ";
  for (const store::RedisNode& node : redis.nodes) {
    out << std::exchange(before, ", ") << "{ name = " << toml_string(node.name)
        << ", url = " << toml_string(node.endpoint.display()) << " }";
  }
  out << " ]\n";
}

void write_tls(std::ostream& out, const tls::TlsOptions& tls) {
  out << "\n[redis.tls]\n";
  const auto write = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) out << key << " = " << toml_string(value) << "\n";
  };
  write("ca_file", tls.ca_file);
  write("cert_file", tls.cert_file);
  write("key_file", tls.key_file);
  write("server_name", tls.server_name);
  out << "verify = " << truth(tls.verify) << "\n";
}

void write_definition(std::ostream& out, const limiter::Definition& definition, const char* separator) {
  if (definition.tiers().size() == 1 && definition.tiers().front().name.empty()) {
    write_rules(out, definition.tiers().front(), separator);
  } else {
    out << "tiers = [";
    const char* before = " ";
    for (const limiter::Tier& tier : definition.tiers()) {
      out << std::exchange(before, ", ") << "{ name = " << toml_string(tier.name) << ", ";
      write_rules(out, tier, ", ");
      out << ", shadow = " << truth(tier.shadow) << " }";
    }
    out << " ]";
  }
}

void write_override(std::ostream& out, const Override& override) {
  if (override.definition) write_ticks(out, *override.definition, "this override");
  out << toml_string(override.key + (override.is_prefix ? "*" : "")) << " = { ";
  switch (override.kind) {
    case Override::Kind::unlimited: out << "unlimited = true"; break;
    case Override::Kind::deny: out << "deny = true"; break;
    case Override::Kind::definition:
      write_definition(out, *override.definition, ", ");
      out << ", shadow = " << truth(override.definition->is_shadow());
      break;
  }
  out << " }\n";
}

void write_limit(std::ostream& out, const LimitConfig& limit) {
  const std::string name = "limits." + toml_string(limit.name);
  out << "\n[" << name << "]\n";
  write_ticks(out, *limit.definition, "this limit");
  write_definition(out, *limit.definition, "\n");
  out << "\nshadow = " << truth(limit.definition->is_shadow()) << "\n"
      << "scope = " << (limit.is_host_wide ? "\"host\"" : "\"global\"") << "\n"
      << "refund = " << truth(limit.may_refund) << "\n"
      << (limit.split > 1 ? "split = " + std::to_string(limit.split) + "\n" : "")
      << (limit.lease.amount > 0 ? "lease = " + limit.lease.print() + "\n" : "")
      << "on_failure = " << toml_string(name_of(limit.on_failure)) << "\n"
      << (limit.local_share > 0 ? "local_share = " + std::to_string(limit.local_share) + "\n" : "")
      << "deadline = " << toml_string(print(limit.deadline)) << "\n";
  if (limit.max_new_keys_per_second != 0)
    out << "max_new_keys_per_second = " << limit.max_new_keys_per_second << "\n";
  if (limit.overflow) {
    const limiter::TokenBucket& bucket = limit.overflow->bucket();
    write_ticks(out, *limit.overflow, "this overflow bucket");
    out << "overflow = { rate = " << toml_string(print(bucket.rate())) << ", burst = " << bucket.burst()
        << " }\n";
  }
  if (!limit.overrides.empty()) out << "\n[" << name << ".overrides]\n";
  for (const Override& override : limit.overrides) write_override(out, override);
  if (!limit.plans.empty()) out << "\n[" << name << ".plans]\n";
  for (const Plan& plan : limit.plans) {
    write_ticks(out, *plan.definition, "this plan");
    out << toml_string(plan.name) << " = { ";
    write_definition(out, *plan.definition, ", ");
    out << " }\n";
  }
}

}  // namespace

std::string to_toml(const Config& config) {
  std::ostringstream out;
  const AgentConfig& agent = config.agent;
  out << "[agent]\n";
  if (!agent.socket.empty()) out << "socket = " << toml_string(agent.socket) << "\n";
  out << "socket_mode = " << toml_string(octal(agent.socket_mode)) << "\n";
  if (!agent.socket_group.empty()) out << "socket_group = " << toml_string(agent.socket_group) << "\n";
  if (!agent.admin_socket.empty()) out << "admin_socket = " << toml_string(agent.admin_socket) << "\n";
  out << "max_connections = " << agent.max_connections << "\n"
      << "max_keys = " << agent.max_keys << "\n"
      << "deadline = " << toml_string(print(agent.deadline)) << "\n"
      << "shadow = " << truth(agent.shadow) << "\n";
  if (config.redis) {
    out << "\n[redis]\n";
    write_nodes(out, *config.redis);
    if (!config.redis->password_file.empty())
      out << "password_file = " << toml_string(config.redis->password_file) << "\n";
    out << "prefix = " << toml_string(config.redis->prefix) << "\n"
        << "reconnect_max = " << toml_string(print(config.redis->reconnect_max)) << "\n"
        << "clock = " << toml_string(name_of(config.redis->clock)) << "\n"
        << "max_connection_age = "
        << toml_string(
               config.redis->max_connection_age.count() == 0 ? "0" : print(config.redis->max_connection_age))
        << "\n";
    if (config.redis->uses_tls()) write_tls(out, config.redis->tls);
  }
  out << "\n[prefilter]\n"
      << "trust = " << toml_string(print(config.prefilter.trust)) << "\n"
      << "hold = " << toml_string(print(config.prefilter.hold)) << "\n";
  for (const LimitConfig& limit : config.limits) write_limit(out, limit);
  return out.str();
}

std::string hash_of(const Config& config) {
  const std::string text = to_toml(config);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits;
}

}  // namespace allowd::config
