// SPDX-License-Identifier: MIT
#include "agent/store/redis/redis_store.h"

#include <algorithm>
#include <utility>

#include "agent/store/redis/shard_metrics.h"
#include "agent/store/redis/topology/sentinel.h"

namespace allowd::store {
namespace {

std::vector<std::string> names_of(std::span<const RedisNode> nodes) {
  std::vector<std::string> names;
  for (const RedisNode& node : nodes) names.push_back(node.name);
  return names;
}

// The set in which agents are counted. No key of a limit is like it: those have four hex digits in the
// braces.
std::string agents_key(std::string_view prefix) { return std::string(prefix) + ":{agents}"; }

std::unique_ptr<EndpointSource> make_source(loop::Loop& loop, const std::optional<SentinelGroup>& sentinel,
                                            const RedisNode& node, const std::shared_ptr<TlsMaterial>& tls) {
  if (sentinel) return std::make_unique<SentinelSource>(loop, *sentinel, node.endpoint, tls);
  return std::make_unique<FixedEndpoint>(node.endpoint);
}

}  // namespace

RedisStore::RedisStore(loop::Loop& loop, const Servers& servers, const Options& options)
    : prefix_(options.prefix), names_(names_of(servers.nodes)), rendezvous_(names_) {
  const bool is_alone = servers.nodes.size() == 1;
  const bool uses_tls = std::any_of(servers.nodes.begin(), servers.nodes.end(),
                                    [](const RedisNode& node) { return node.endpoint.is_tls; });
  const auto tls = uses_tls ? std::make_shared<TlsMaterial>(loop, options.tls) : nullptr;
  for (const RedisNode& node : servers.nodes) {
    shards_.push_back(std::make_unique<Shard>(
        loop, Shard::Options{
                  .link = {.source = make_source(loop, servers.sentinel, node, tls),
                           .tls = tls,
                           .label = is_alone ? std::string() : node.name,
                           .reconnect_max = options.reconnect_max,
                           .max_connection_age = options.max_connection_age,
                           .deadline = options.deadline,
                           .clock = options.clock,
                           .script = {},
                           .random_seed = options.random_seed + shards_.size()},
                  .heartbeat = {.key = [key = agents_key(options.prefix)] { return key; },
                                .id = options.agent_id,
                                .random_seed = options.random_seed + shards_.size()},
                  .max_questions = std::max<std::size_t>(1, options.max_questions / servers.nodes.size())}));
  }
}

void RedisStore::flush() {
  for (const auto& shard : shards_) shard->flush();
}

void RedisStore::leave() {
  for (const auto& shard : shards_) shard->leave();
}

void RedisStore::start() {
  for (const auto& shard : shards_) shard->start();
}

void RedisStore::attach(SharedSink& sink) {
  for (const auto& shard : shards_) shard->attach(sink);
}

std::string_view RedisStore::redis_key(std::string_view limit_tag, std::string_view key) const {
  key_.clear();
  append_redis_key(key_, prefix_, limit_tag, key);
  return key_;
}

std::uint32_t RedisStore::shard_of(std::string_view limit_tag, std::string_view key, std::size_t rank) const {
  if (shards_.size() == 1) return 0;
  const std::string_view own = redis_key(limit_tag, key);
  return static_cast<std::uint32_t>(rank == 0 ? rendezvous_.choose(own) : rendezvous_.choose(own, rank));
}

std::optional<ShardTime> RedisStore::time_of(std::uint32_t shard, SteadyTime now) const {
  return shards_[shard]->time(now);
}

bool RedisStore::ask(const SharedQuestion& question) {
  return shards_[question.shard]->ask(question, redis_key(question.limit_tag, question.key));
}

bool RedisStore::ask_together(std::span<const SharedQuestion> questions) {
  if (questions.empty()) return false;
  const std::uint32_t chosen = questions.front().shard;
  std::vector<std::string> keys;
  for (const SharedQuestion& question : questions) {
    if (question.shard != chosen) return false;
    keys.emplace_back(redis_key(question.limit_tag, question.key));
  }
  return shards_[chosen]->ask_together(questions, keys);
}

void RedisStore::reset(std::uint32_t shard, std::string_view limit_tag, std::string_view key,
                       std::function<void(bool)> done) {
  // Others may be answered, and ask again, before it is sent.
  const std::string own(redis_key(limit_tag, key));
  shards_[shard]->reset(own, false, [done = std::move(done)](const Reply& reply) {
    done(reply != nullptr && !is_error(reply));
  });
}

std::string RedisStore::describe_shards() const {
  std::string text = "# name ";
  text += Shard::heading();
  for (std::size_t i = 0; i < shards_.size(); ++i) text += names_[i] + " " + shards_[i]->describe();
  return text;
}

bool RedisStore::is_available() const {
  return std::all_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard->is_answering(); });
}

limiter::Micros RedisStore::next_probe_in(std::uint32_t shard, SteadyTime now) const {
  return shards_[shard]->next_probe_in(now);
}

void RedisStore::collect(std::vector<stats::Metric>& metrics) const {
  metrics.push_back({"redis_shards", stats::Metric::Kind::gauge, "Redis servers that share the keys out.",
                     static_cast<double>(shards_.size())});
  const std::size_t first = metrics.size();
  shards_.front()->collect(metrics);
  std::vector<stats::Metric> others;
  for (std::size_t i = 1; i < shards_.size(); ++i) {
    others.clear();
    shards_[i]->collect(others);
    add_shard_metrics(std::span(metrics).subspan(first), others);
  }
}

}  // namespace allowd::store
