// SPDX-License-Identifier: MIT
#include "agent/store/redis/cluster_store.h"

#include <algorithm>
#include <utility>

#include "agent/store/redis/shard_metrics.h"

namespace allowd::store {
namespace {

// A map, or a server that redirects, may name any address: no more are connected to than may keep something.
constexpr std::size_t kMaxNodes = KeyGroups::kGroups;
constexpr limiter::Micros kWatchEvery = std::chrono::milliseconds(100);

}  // namespace

ClusterStore::ClusterStore(loop::Loop& loop, const std::vector<RedisEndpoint>& seeds, const Options& options)
    : loop_(loop),
      seed_(seeds.front()),
      options_(options),
      tls_(seeds.front().is_tls ? std::make_shared<TlsMaterial>(loop, options.tls) : nullptr),
      random_(options.random_seed),
      watch_(
          loop, seeds, tls_, options.random_seed, [this] { return answering_nodes(); },
          [this](const SlotMap& map) { return adopt(map); }) {
  // There are the same metrics whether or not a node is known yet.
  const Shard nobody(loop, {.link = {.source = std::make_unique<FixedEndpoint>(seeds.front()),
                                     .tls = nullptr,
                                     .label = {},
                                     .script = {}},
                            .heartbeat = {}});
  nobody.collect(retired_);
}

std::string_view ClusterStore::redis_key(std::uint32_t group, std::string_view limit_tag,
                                         std::string_view key) const {
  key_.clear();
  key_groups_.append_redis_key(key_, options_.prefix, group, limit_tag, key);
  return key_;
}

// Which node keeps what

ClusterStore::Node* ClusterStore::node_at(const NodeAddress& address) {
  const std::string name = address.print();
  if (const auto known = nodes_.find(name); known != nodes_.end()) return &known->second;
  if (nodes_.size() >= kMaxNodes) return nullptr;
  Node& node = nodes_[name];
  node.endpoint = seed_;
  node.endpoint.host = address.host;
  node.endpoint.port = address.port;
  node.needed_at = loop_.now();
  node.shard = std::make_unique<Shard>(
      loop_, Shard::Options{.link = {.source = std::make_unique<FixedEndpoint>(node.endpoint),
                                     .epochs = epochs_,
                                     .tls = tls_,
                                     .label = {},
                                     .reconnect_max = options_.reconnect_max,
                                     .max_connection_age = options_.max_connection_age,
                                     .deadline = options_.deadline,
                                     .clock = options_.clock,
                                     .script = {},
                                     .random_seed = options_.random_seed + ++nodes_made_},
                            .heartbeat = {.key = [this, &node] { return agents_key(node); },
                                          .id = options_.agent_id,
                                          .random_seed = options_.random_seed + nodes_made_},
                            .groups = KeyGroups::kGroups,
                            .router = this});
  node.shard->attach(*sink_);
  share_out_questions();
  node.shard->start();
  return &node;
}

void ClusterStore::share_out_questions() {
  const std::size_t share = options_.max_questions / std::max<std::size_t>(1, nodes_.size());
  for (auto& [name, node] : nodes_) node.shard->set_max_questions(share);
}

void ClusterStore::assign(std::uint32_t group, Node* node) {
  Node*& keeper = groups_[group].node;
  if (keeper == node) return;
  if (keeper != nullptr) {
    --keeper->groups;
    keeper->needed_at = loop_.now();
  }
  if (node != nullptr) ++node->groups;
  keeper = node;
}

std::string ClusterStore::agents_key(const Node& node) const {
  const auto first =
      std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) { return group.node == &node; });
  if (first == groups_.end()) return {};
  std::string key;
  key_groups_.append_redis_key(key, options_.prefix, static_cast<std::uint32_t>(first - groups_.begin()),
                               "agents", "");
  return key;
}

bool ClusterStore::adopt(const SlotMap& map) {
  std::array<const NodeAddress*, KeyGroups::kGroups> found{};
  for (std::uint32_t group = 0; group < KeyGroups::kGroups; ++group)
    found[group] = map.find(key_groups_.slot(group));
  if (std::all_of(found.begin(), found.end(), [](const auto* address) { return address == nullptr; }))
    return false;
  for (std::uint32_t group = 0; group < KeyGroups::kGroups; ++group)
    assign(group, found[group] == nullptr ? nullptr : node_at(*found[group]));
  return true;
}

std::vector<RedisEndpoint> ClusterStore::answering_nodes() const {
  std::vector<RedisEndpoint> endpoints;
  for (const auto& [name, node] : nodes_) {
    if (node.shard->is_up()) endpoints.push_back(node.endpoint);
  }
  return endpoints;
}

const ClusterStore::Node* ClusterStore::node_with(const Shard& shard) const {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const auto& entry) { return entry.second.shard.get() == &shard; });
  return found == nodes_.end() ? nullptr : &found->second;
}

// What servers redirect

ClusterStore::Node* ClusterStore::node_of(std::string_view redirection, const RedisEndpoint& from) {
  const auto where = read_redirection(redirection);
  if (!where) return nullptr;
  return node_at({where->host.empty() ? from.host : where->host, where->port});
}

void ClusterStore::redirect(Shard& from, const Batch& batch, ServerError error, std::string_view text) {
  redirections_total_ += batch.call->items().size();
  Group& group = groups_[batch.group];
  // Before Redis 7 a server says ASK to a script about several keys as soon as one of them has left; only key
  // by key does it tell which. To ask the other server about one that is still here would count it twice.
  const bool may_be_parted =
      error == ServerError::ask && batch.call->items().size() > 1 && !batch.call->is_together();
  if (error == ServerError::try_again || may_be_parted) {
    Shard& keeper = group.node != nullptr ? *group.node->shard : from;
    return keeper.take_over(batch, Shard::Passage::one_by_one);
  }
  Node* node = node_of(text, node_with(from)->endpoint);
  if (error == ServerError::moved) watch_.doubt();
  if (node == nullptr) return from.refuse(batch);
  if (error == ServerError::moved) {
    assign(batch.group, node);
    return node->shard->take_over(batch, Shard::Passage::as_it_is);
  }
  forget_clock(group);
  node->shard->take_over(batch, Shard::Passage::asking);
}

void ClusterStore::forget_clock(Group& group) {
  const auto time = group.node != nullptr ? group.node->shard->time(loop_.now()) : std::nullopt;
  if (!time) return;
  group.node_epoch = time->epoch;
  group.epoch = ++*epochs_;
}

// A turn's end

void ClusterStore::flush() {
  for (auto& [name, node] : nodes_) node.shard->flush();
  if (loop_.now() - watched_at_ >= kWatchEvery) watch_nodes();
}

// As SharedStore has it

std::optional<ShardTime> ClusterStore::time_of(std::uint32_t group, SteadyTime now) const {
  const Group& asked = groups_[group];
  if (asked.node == nullptr) return std::nullopt;
  auto time = asked.node->shard->time(now);
  if (time && time->epoch == asked.node_epoch) time->epoch = asked.epoch;
  return time;
}

bool ClusterStore::ask(const SharedQuestion& question) {
  const Node* node = groups_[question.shard].node;
  return node != nullptr &&
         node->shard->ask(question, redis_key(question.shard, question.limit_tag, question.key));
}

bool ClusterStore::ask_together(std::span<const SharedQuestion> questions) {
  if (questions.empty()) return false;
  const std::uint32_t group = questions.front().shard;
  std::vector<std::string> keys;
  for (const SharedQuestion& question : questions) {
    if (question.shard != group) return false;
    keys.emplace_back(redis_key(group, question.limit_tag, question.key));
  }
  const Node* node = groups_[group].node;
  return node != nullptr && node->shard->ask_together(questions, keys);
}

void ClusterStore::leave() {
  for (auto& [name, node] : nodes_) node.shard->leave();
}

void ClusterStore::note_expired(std::uint32_t group, limiter::Micros waited, SteadyTime now) {
  if (groups_[group].node != nullptr) groups_[group].node->shard->note_expired(waited, now);
}

std::optional<std::uint32_t> ClusterStore::agents(std::uint32_t group) const {
  return groups_[group].node == nullptr ? std::nullopt : groups_[group].node->shard->agents();
}

bool ClusterStore::is_available() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const Group& group) {
    return group.node != nullptr && group.node->shard->is_answering();
  });
}

limiter::Micros ClusterStore::next_probe_in(std::uint32_t group, SteadyTime now) const {
  const Node* node = groups_[group].node;
  // Others are asked about every second who keeps it by now.
  return node == nullptr ? limiter::Micros{std::chrono::seconds(1)} : node->shard->next_probe_in(now);
}

std::string ClusterStore::describe_shards() const {
  std::string text = "# name groups ";
  text += Shard::heading();
  for (const auto& [name, node] : nodes_)
    text += name + " " + std::to_string(node.groups) + " " + node.shard->describe();
  if (nodes_.empty()) {
    text += "- 0 " + Shard::describe_unnamed(watch_.seeds(), loop_.now() - watch_.why_unknown_at(),
                                             watch_.why_unknown());
  }
  return text;
}

void ClusterStore::collect(std::vector<stats::Metric>& metrics) const {
  const auto keepers =
      std::count_if(nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.groups > 0; });
  metrics.push_back({"redis_shards", stats::Metric::Kind::gauge, "Redis servers that share the keys out.",
                     static_cast<double>(keepers)});
  metrics.push_back({"redis_redirections_total", stats::Metric::Kind::counter,
                     "Questions that a node of the Cluster has sent to another one.",
                     static_cast<double>(redirections_total_)});
  watch_.collect(metrics);
  metrics.push_back({"redis_cluster_keeper_questions_total", stats::Metric::Kind::counter,
                     "Times that a node was asked who keeps what another one kept that does not answer.",
                     static_cast<double>(keeper_questions_total_)});
  const std::size_t first = metrics.size();
  metrics.insert(metrics.end(), retired_.begin(), retired_.end());
  std::vector<stats::Metric> counted;
  for (const auto& [name, node] : nodes_) {
    counted.clear();
    node.shard->collect(counted);
    for (stats::Metric& metric : counted) {
      // Of nodes that keep nothing it is of no interest whether they answer.
      if (node.groups == 0 && metric.kind == stats::Metric::Kind::gauge) metric.value = 0;
    }
    add_shard_metrics(std::span(metrics).subspan(first), counted);
  }
}

}  // namespace allowd::store
