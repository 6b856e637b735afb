// SPDX-License-Identifier: MIT
//
// ClusterStore, as far as its nodes come and go, and fail.
//
// While a master does not answer, another node is asked about once a second who keeps its keys: one small
// command on a connection that is there, so that a replica's taking over is noticed soon and a fleet costs
// next to nothing. The whole map costs a node more, and is asked for less and less often meanwhile.
#include <algorithm>
#include <utility>

#include "agent/store/redis/cluster_store.h"
#include "agent/store/redis/shard_metrics.h"

namespace allowd::store {
namespace {

constexpr limiter::Micros kKeepFor = std::chrono::seconds(10);
constexpr limiter::Micros kLeastBetween = std::chrono::milliseconds(750);
constexpr limiter::Micros kMostBetween = std::chrono::milliseconds(1250);

}  // namespace

void ClusterStore::watch_nodes() {
  const SteadyTime now = watched_at_ = loop_.now();
  for (auto at = nodes_.begin(); at != nodes_.end();) {
    Node& node = at->second;
    if (node.groups > 0) node.needed_at = now;
    if (now - node.needed_at < kKeepFor || !node.shard->is_idle()) {
      ++at;
      continue;
    }
    retire(node);
    at = nodes_.erase(at);
    share_out_questions();
  }
  std::vector<std::uint32_t> missed;
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    if (is_missed(groups_[group])) missed.push_back(group);
  }
  if (missed.empty()) return;
  watch_.miss();
  if (now < ask_keeper_at_) return;
  ask_keeper_at_ = now + limiter::Micros{std::uniform_int_distribution(kLeastBetween.count(),
                                                                       kMostBetween.count())(random_)};
  ask_for_keeper(missed[std::uniform_int_distribution<std::size_t>(0, missed.size() - 1)(random_)]);
}

bool ClusterStore::is_missed(const Group& group) {
  return group.node == nullptr || (!group.node->shard->is_answering() && !group.node->shard->is_waited_for());
}

void ClusterStore::ask_for_keeper(std::uint32_t group) {
  std::vector<Node*> others;
  for (auto& [name, node] : nodes_) {
    if (node.shard->is_up() && node.shard->is_answering()) others.push_back(&node);
  }
  if (others.empty()) return;
  Node& asked = *others[std::uniform_int_distribution<std::size_t>(0, others.size() - 1)(random_)];
  ++keeper_questions_total_;
  // No limit's: a tag has the length of its limit's name in it.
  const std::string key(redis_key(group, "keeper", ""));
  asked.shard->ask_about_nothing(key, [this, group, from = asked.endpoint](const Reply& reply) {
    if (reply != nullptr) on_keeper(group, from, reply);
  });
}

void ClusterStore::on_keeper(std::uint32_t group, const RedisEndpoint& from, const Reply& reply) {
  if (!is_missed(groups_[group])) return;
  Node* keeper = nullptr;
  if (!is_error(reply)) {
    keeper = node_at({from.host, from.port});
  } else if (read_error(text_of(reply)).kind == ServerError::moved) {
    keeper = node_of(text_of(reply), from);
  }
  Node* const before = groups_[group].node;
  if (keeper == nullptr || keeper == before) return;
  // Most likely all that it kept has gone the same way. What has not is redirected, and the map tells.
  for (std::uint32_t other = 0; other < groups_.size(); ++other) {
    if (groups_[other].node == before) assign(other, keeper);
  }
  watch_.doubt();
}

void ClusterStore::retire(const Node& node) {
  node.shard->forget_debts();
  std::vector<stats::Metric> counted;
  node.shard->collect(counted);
  for (stats::Metric& metric : counted) {
    if (metric.kind == stats::Metric::Kind::gauge) metric.value = 0;
  }
  add_shard_metrics(retired_, counted);
}

}  // namespace allowd::store
