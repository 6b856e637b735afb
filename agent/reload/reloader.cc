// SPDX-License-Identifier: MIT
#include "agent/reload/reloader.h"

#include <optional>
#include <utility>

#include "agent/log/log.h"

namespace allowd::reload {

std::vector<std::string> changes_for_restart(const config::Config& running, const config::Config& loaded) {
  std::vector<std::string> changed;
  const auto compare = [&](std::string_view key, const auto& before, const auto& after) {
    if (before != after) changed.emplace_back(key);
  };
  const config::AgentConfig& a = running.agent;
  const config::AgentConfig& b = loaded.agent;
  compare("agent.socket", a.socket, b.socket);
  compare("agent.socket_mode", a.socket_mode, b.socket_mode);
  compare("agent.socket_group", a.socket_group, b.socket_group);
  compare("agent.admin_socket", a.admin_socket, b.admin_socket);
  compare("agent.max_connections", a.max_connections, b.max_connections);
  compare("agent.max_keys", a.max_keys, b.max_keys);
  compare("redis", running.redis.has_value(), loaded.redis.has_value());
  if (running.redis && loaded.redis) {
    compare("redis.cluster", running.redis->cluster, loaded.redis->cluster);
    const bool are_urls = running.redis->is_single_url() && loaded.redis->is_single_url();
    compare("redis.sentinel", running.redis->sentinel, loaded.redis->sentinel);
    compare("redis.clock", running.redis->clock, loaded.redis->clock);
    compare("redis.max_connection_age", running.redis->max_connection_age, loaded.redis->max_connection_age);
    compare(are_urls ? "redis.url" : "redis.shards", running.redis->nodes, loaded.redis->nodes);
    compare("redis.prefix", running.redis->prefix, loaded.redis->prefix);
    compare("redis.reconnect_max", running.redis->reconnect_max, loaded.redis->reconnect_max);
    compare("redis.tls", running.redis->tls, loaded.redis->tls);
  }
  compare("prefilter.trust", running.prefilter.trust, loaded.prefilter.trust);
  compare("prefilter.hold", running.prefilter.hold, loaded.prefilter.hold);
  return changed;
}

Reloader::Reloader(loop::Loop& loop, std::string path, config::Config running, decide::LimitTable& limits,
                   admin::ConfigStatus& status)
    : path_(std::move(path)), running_(std::move(running)), limits_(limits), status_(status), task_(loop) {}

void Reloader::reload(Done done) {
  waiting_.push_back(std::move(done));
  if (!task_.is_running()) start();
}

void Reloader::start() {
  served_ = std::exchange(waiting_, {});
  auto loaded = std::make_shared<std::optional<Result<config::Config>>>();
  task_.start(
      [loaded, path = path_] {
        if (path.empty()) {
          loaded->emplace(Error{Error::Code::bad_request, "the agent was started without a config file"});
        } else {
          loaded->emplace(config::load_config(path));
        }
      },
      [this, loaded] { finish(**loaded); });
}

void Reloader::finish(Result<config::Config>& loaded) {
  const Result<std::string> outcome = apply(loaded);
  if (!waiting_.empty()) {
    auto served = std::exchange(served_, {});
    start();
    for (const Done& done : served) done(outcome);
    return;
  }
  for (const Done& done : std::exchange(served_, {})) done(outcome);
}

Result<std::string> Reloader::apply(Result<config::Config>& loaded) {
  if (!loaded) {
    status_.reload_error = loaded.error().message;
    log::error("reload: {}; the running configuration stays", loaded.error().message);
    return loaded.error();
  }
  limits_.load(*loaded);
  status_.hash = config::hash_of(*loaded);
  status_.reload_error.clear();
  ++status_.generation;
  std::string text = "reloaded: generation " + std::to_string(status_.generation) + ", " +
                     std::to_string(loaded->limits.size()) + " limits\n";
  log::info("reloaded {}: generation {}, {} limits", path_, status_.generation, loaded->limits.size());
  for (const std::string& key : changes_for_restart(running_, *loaded)) {
    text += key + " has changed: that takes effect at a restart\n";
    log::warn("reload: {} has changed: that takes effect at a restart", key);
  }
  return text;
}

}  // namespace allowd::reload
