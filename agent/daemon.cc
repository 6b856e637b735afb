// SPDX-License-Identifier: MIT
#include "agent/daemon.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "agent/admin/commands.h"
#include "agent/admin/reporter.h"
#include "agent/decide/decider.h"
#include "agent/io/server.h"
#include "agent/io/service_manager.h"
#include "agent/io/signals.h"
#include "agent/io/socket_path.h"
#include "agent/log/log.h"
#include "agent/loop/loop.h"
#include "agent/loop/timer.h"
#include "agent/prefilter/prefilter.h"
#include "agent/random_bits.h"
#include "agent/reload/reloader.h"
#include "agent/stats/turn_times.h"
#include "agent/store/memory/memory_store.h"
#include "agent/store/redis/cluster_store.h"
#include "agent/store/redis/redis_store.h"
#include "agent/tls/tls_context.h"

namespace allowd {
namespace {

// 128 bits in hex.
std::string random_id() {
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(random_bits()),
                static_cast<unsigned long long>(random_bits()));
  return digits;
}

// Descriptors that are not clients': sockets, Redis, DNS, files.
constexpr rlim_t kReservedFds = 64;
constexpr rlim_t kFdsPerShard = 2;  // a stalled connection is listened to beside the new one

// Raises the soft limit to the hard one, and says how many clients that leaves room for.
std::size_t clients_that_fit(std::size_t wanted, std::size_t shards) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t reserved = kReservedFds + kFdsPerShard * shards;
  const rlim_t room = limit.rlim_cur > 2 * reserved ? limit.rlim_cur - reserved : limit.rlim_cur / 2;
  if (wanted <= room) return wanted;
  log::warn("max_connections is cut to {}: only {} file descriptors may be open", room, limit.rlim_cur);
  return room;
}

// libuv looks names up on half of its threads at most, and one that hangs keeps its thread. Two for each
// server leave one for everybody else's. Must come before the first use of the pool; the environment wins.
void size_thread_pool(std::size_t servers) {
  constexpr std::size_t kDefault = 4;
  const std::string threads = std::to_string(std::max(kDefault, 2 * servers));
  ::setenv("UV_THREADPOOL_SIZE", threads.c_str(), 0);
}

Failure find_sockets(config::AgentConfig& agent) {
  if (agent.socket.empty()) {
    auto path = io::default_socket_path();
    if (!path) return std::move(path.error());
    agent.socket = *path;
  }
  if (agent.admin_socket.empty()) agent.admin_socket = io::derive_admin_path(agent.socket);
  return {};
}

std::unique_ptr<store::MemoryStore> make_memory_store(const config::Config& config) {
  const auto wall = std::chrono::time_point_cast<limiter::Micros>(std::chrono::system_clock::now());
  return std::make_unique<store::MemoryStore>(store::MemoryStore::Options{
      .max_keys = static_cast<std::size_t>(config.agent.max_keys),
      .epoch_offset = wall.time_since_epoch() - loop::Loop::exact_now().time_since_epoch(),
      .secret = {random_bits(), random_bits(), random_bits(), random_bits()}});
}

std::unique_ptr<store::RemoteStore> make_redis_store(const config::RedisConfig& redis,
                                                     limiter::Micros deadline, loop::Loop& loop) {
  const store::RemoteStore::Options options{.prefix = redis.prefix,
                                            .reconnect_max = redis.reconnect_max,
                                            .max_connection_age = redis.max_connection_age,
                                            .clock = redis.clock,
                                            .deadline = deadline,
                                            .tls = redis.tls,
                                            .random_seed = random_bits(),
                                            .agent_id = random_id()};
  if (!redis.cluster.empty()) return std::make_unique<store::ClusterStore>(loop, redis.cluster, options);
  return std::make_unique<store::RedisStore>(loop, store::RedisStore::Servers{redis.nodes, redis.sentinel},
                                             options);
}

// How many servers a config may mean, as far as that can be known: a Cluster has nodes that it does not name.
std::size_t servers_of(const config::Config& config) {
  constexpr std::size_t kOfCluster = 64;
  if (!config.redis) return 0;
  if (!config.redis->cluster.empty()) return kOfCluster;
  return config.redis->nodes.size() + (config.redis->sentinel ? config.redis->sentinel->sentinels.size() : 0);
}

// What is asked of Redis, and not: the store that all hosts share behind what this one knows of it.
struct SharedLimits {
  SharedLimits(const config::Config& config, loop::Loop& loop)
      : redis(make_redis_store(*config.redis, config.agent.deadline, loop)),
        prefilter(*redis, {.trust = config.prefilter.trust,
                           .hold = config.prefilter.hold,
                           .max_keys = static_cast<std::size_t>(config.agent.max_keys)}) {
    loop.at_turn_end([this, &loop] {
      prefilter.flush(loop.now());
      redis->flush();
      // Whom one server failed just now may have asked again.
      if (prefilter.has_unasked()) loop.run_another_turn();
      if (const auto wake = prefilter.next_wake()) loop.wake_by(*wake);
    });
  }

  std::unique_ptr<store::RemoteStore> redis;
  prefilter::Prefilter prefilter;
};

}  // namespace

// The files that a config names belong to it: without them it is as wrong as with a misspelt key.
Failure check_files(const config::Config& config, const std::string& config_path) {
  if (!config.redis || !config.redis->uses_tls()) return {};
  auto context = tls::TlsContext::make(config.redis->tls);
  if (context) return {};
  return Error{context.error().code, config_path + ": redis.tls." + context.error().message};
}

int serve(config::Config config, const std::string& config_path) {
  const config::Config as_loaded = config;
  auto unusable = check_files(config, config_path);
  if (!unusable) unusable = find_sockets(config.agent);
  if (unusable) {
    log::critical("{}", unusable->message);
    return EXIT_FAILURE;
  }
  size_thread_pool(servers_of(config));
  loop::Loop loop;
  const auto started = loop.now();
  stats::Registry registry;
  decide::LimitTable limits(config, registry, {random_bits(), random_bits(), random_bits(), random_bits()});

  // Also with Redis: limits of scope "host" are kept in it.
  const auto memory = make_memory_store(config);
  std::unique_ptr<SharedLimits> shared;
  if (config.redis) {
    shared = std::make_unique<SharedLimits>(config, loop);
  } else {
    log::info("no [redis] is configured: limits are kept in memory, per host");
  }
  store::Store& store = shared ? static_cast<store::Store&>(shared->prefilter) : *memory;

  decide::Decider decider(store, *memory, limits, registry, static_cast<std::size_t>(config.agent.max_keys));
  // A count of agents that has changed changes what each may do alone.
  loop.at_turn_end([&] { limits.share_between(store.most_agents().value_or(1)); });
  admin::ConfigStatus status;
  status.hash = config::hash_of(as_loaded);
  reload::Reloader reloader(loop, config_path, as_loaded, limits, status);
  const admin::Reporter reporter(ALLOWD_VERSION, status, limits, store, registry, started);
  admin::Commands commands(reporter, limits, decider, [&](auto done) { reloader.reload(std::move(done)); });
  io::Server server(loop,
                    {.app = {config.agent.socket, config.agent.socket_mode, config.agent.socket_group},
                     .admin = {config.agent.admin_socket, 0600, ""},
                     .max_connections = clients_that_fit(
                         static_cast<std::size_t>(config.agent.max_connections), servers_of(config))},
                    decider, reporter, commands);
  stats::TurnTimes turns([&] { return loop.now(); });
  loop.observe_turns([&](const loop::Turn& turn) { turns.record(turn.end, turn.wall, turn.processor); });
  for (const stats::MetricSource* source :
       std::initializer_list<const stats::MetricSource*>{&server, &decider, memory.get(), &turns}) {
    registry.add_source(*source);
  }
  if (shared) {
    registry.add_source(shared->prefilter);
    registry.add_source(*shared->redis);
  }

  loop::Timer janitor(loop);
  static constexpr auto kSweepEvery = std::chrono::milliseconds(500);
  loop.at_turn_end([&] {
    if (janitor.is_running() || memory->is_empty()) return;
    janitor.every(kSweepEvery, [&] {
      if (!memory->sweep(loop.now())) janitor.stop();
    });
  });

  if (auto problem = server.open()) {
    log::critical("{}", problem->message);
    return EXIT_FAILURE;
  }
  if (shared) shared->redis->start();
  const auto stop = [&] {
    io::notify_service_manager("STOPPING=1");
    if (shared) {
      shared->prefilter.end_leases(loop.now());
      shared->redis->leave();
    }
    server.drain([&] { loop.stop(); });
  };
  const io::Signal on_term(loop, SIGTERM, stop);
  const io::Signal on_interrupt(loop, SIGINT, stop);
  const io::Signal on_hangup(loop, SIGHUP, [&] { reloader.reload([](const auto&) {}); });
  log::info("allowd {} listens on {}, admin on {}", ALLOWD_VERSION, config.agent.socket,
            config.agent.admin_socket);
  io::notify_service_manager("READY=1");
  loop.run();
  std::signal(SIGTERM, SIG_IGN);  // once is enough; the handlers go with the loop
  std::signal(SIGINT, SIG_IGN);
  log::info("stopped");
  return 0;
}

}  // namespace allowd
