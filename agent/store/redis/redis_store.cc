// SPDX-License-Identifier: MIT
#include "agent/store/redis/redis_store.h"

#include <algorithm>
#include <utility>

namespace allowd::store {
namespace {

std::vector<std::string> names_of(std::span<const RedisNode> nodes) {
  std::vector<std::string> names;
  for (const RedisNode& node : nodes) names.push_back(node.name);
  return names;
}

// What one server measures, not what it counts: of several the worst is of interest.
constexpr std::string_view kUncertainty = "redis_clock_uncertainty_seconds";

}  // namespace

RedisStore::RedisStore(loop::Loop& loop, const Options& options)
    : loop_(loop), prefix_(options.prefix), names_(names_of(options.nodes)), rendezvous_(names_) {
  const bool is_alone = options.nodes.size() == 1;
  for (const RedisNode& node : options.nodes) {
    shards_.push_back(std::make_unique<Shard>(
        loop, Shard::Options{
                  .link = {.endpoint = node.endpoint,
                           .label = is_alone ? std::string() : node.name,
                           .reconnect_max = options.reconnect_max,
                           .script = {},
                           .random_seed = options.random_seed + shards_.size()},
                  .max_questions = std::max<std::size_t>(1, options.max_questions / options.nodes.size())}));
  }
  loop.at_turn_end([this] { flush(); });
}

void RedisStore::flush() {
  was_asked_ = false;
  for (const auto& shard : shards_) shard->flush();
  // Whom one server failed just now may have asked one whose turn was over.
  if (was_asked_) loop_.run_another_turn();
}

void RedisStore::start() {
  for (const auto& shard : shards_) shard->start();
}

void RedisStore::attach(AnswerSink& sink) {
  for (const auto& shard : shards_) shard->attach(sink);
}

std::string_view RedisStore::redis_key(const Question& question) const {
  key_.clear();
  append_redis_key(key_, prefix_, question.limit_tag, question.key);
  return key_;
}

std::size_t RedisStore::shard_of(const Question& question) const {
  return shards_.size() == 1 ? 0 : rendezvous_.choose(redis_key(question));
}

Answer RedisStore::ask(const Question& question, SteadyTime) {
  was_asked_ = true;
  const std::string_view key = redis_key(question);
  return shards_[rendezvous_.choose(key)]->ask(question, key);
}

bool RedisStore::ask_together(std::span<const Question> questions) {
  was_asked_ = true;
  if (questions.empty()) return false;
  std::vector<std::string> keys;
  for (const Question& question : questions) keys.emplace_back(redis_key(question));
  const std::size_t chosen = rendezvous_.choose(keys.front());
  const bool do_meet = std::all_of(keys.begin(), keys.end(),
                                   [&](const std::string& key) { return rendezvous_.choose(key) == chosen; });
  return do_meet && shards_[chosen]->ask_together(questions, keys);
}

void RedisStore::reset(const Question& question, std::function<void(bool)> done) {
  const std::string key(redis_key(question));  // others may be answered, and ask again, before it is sent
  shards_[rendezvous_.choose(key)]->reset(key, std::move(done));
}

std::string RedisStore::describe_shards() const {
  std::string text = "# name ";
  text += Shard::heading();
  for (std::size_t i = 0; i < shards_.size(); ++i) text += names_[i] + " " + shards_[i]->describe();
  return text;
}

bool RedisStore::is_available() const {
  return std::all_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard->is_up(); });
}

limiter::Micros RedisStore::next_probe_in(std::size_t shard, SteadyTime now) const {
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
    for (std::size_t j = 0; j < others.size(); ++j) {
      double& value = metrics[first + j].value;
      value = others[j].name == kUncertainty ? std::max(value, others[j].value) : value + others[j].value;
    }
  }
}

}  // namespace allowd::store
