// SPDX-License-Identifier: MIT
//
// The store that all hosts share, kept in a Redis Cluster.
//
// Keys are laid out in groups (topology/key_groups.h), and a group is what the pre-filter knows as a shard:
// where a key belongs never changes, but which node keeps that, with which clock and epoch, is looked up each
// time. Since epochs differ between nodes, what is known of a group's keys means nothing as soon as the group
// has moved.
//
// MOVED        The slot's new node is noted at once, the questions go there, the map is asked for anew.
// ASK          Goes to the node that is named, this once. Its clock is another one: what is known of the
//              group's keys is dropped.
// TRYAGAIN     The keys of the script are asked one by one.
// CLUSTERDOWN  on_failure decides; the map is asked for anew, less and less often.
// No answer    The same, and another node is asked every second who keeps its keys (cluster_watch.cc).
// A reset      Charges nothing, so that it may be repeated: within a second it is sent again, after a pause,
//              while its node cannot be asked or says TRYAGAIN or CLUSTERDOWN.
//
// Ownership    One Shard per node, made when it is first named. It ends when no group has needed it for ten
//              seconds and nothing is open there.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "agent/store/redis/batch.h"
#include "agent/store/redis/remote_store.h"
#include "agent/store/redis/shard.h"
#include "agent/store/redis/topology/key_groups.h"
#include "agent/store/redis/topology/slot_map.h"
#include "agent/store/redis/topology/slot_map_watch.h"

namespace allowd::store {

class ClusterStore final : public RemoteStore, private BatchRouter {
 public:
  // `seeds`: at least one, asked in their order until one answers. User, password and TLS are those of all
  // nodes.
  ClusterStore(loop::Loop& loop, const std::vector<RedisEndpoint>& seeds, const Options& options);

  void start() override { watch_.start(); }
  void flush() override;
  void leave() override;

  void attach(SharedSink& sink) override { sink_ = &sink; }
  [[nodiscard]] std::uint32_t shard_of(std::string_view limit_tag, std::string_view key,
                                       std::size_t rank) const override {
    return KeyGroups::group_of(limit_tag, key, rank);
  }
  [[nodiscard]] std::uint32_t shards() const override { return KeyGroups::kGroups; }
  [[nodiscard]] std::optional<ShardTime> time_of(std::uint32_t group, SteadyTime now) const override;
  [[nodiscard]] bool ask(const SharedQuestion& question) override;
  // For keys of one group.
  [[nodiscard]] bool ask_together(std::span<const SharedQuestion> questions) override;
  void reset(std::uint32_t group, std::string_view limit_tag, std::string_view key,
             std::function<void(bool)> done) override;
  [[nodiscard]] std::string describe_shards() const override;
  [[nodiscard]] std::string_view name() const override { return "redis"; }
  [[nodiscard]] bool is_available() const override;
  [[nodiscard]] limiter::Micros next_probe_in(std::uint32_t group, SteadyTime now) const override;
  void note_expired(std::uint32_t group, limiter::Micros waited, SteadyTime now) override;
  [[nodiscard]] std::optional<std::uint32_t> agents(std::uint32_t group) const override;
  void collect(std::vector<stats::Metric>& metrics) const override;

 private:
  struct Node {
    RedisEndpoint endpoint;
    std::unique_ptr<Shard> shard;
    std::size_t groups = 0;  // that it keeps
    SteadyTime needed_at{};  // last time that it kept one
  };
  struct Group {
    Node* node = nullptr;  // null: nobody keeps it
    // After an ASK, in place of the node's epoch as long as that one lasts.
    std::uint32_t node_epoch = 0;
    std::uint32_t epoch = 0;
  };
  // Until somebody has said that it is done, or its patience ends.
  struct Reset {
    std::string redis_key;
    std::uint32_t group;
    int redirections;  // in a row
    std::function<void(bool)> done;
    loop::Timer patience;
    loop::Timer pause;
  };

  void redirect(Shard& from, const Batch& batch, ServerError error, std::string_view text) override;
  void doubt_map() override { watch_.doubt(); }
  void miss_keeper() override { watch_.miss(); }

  [[nodiscard]] bool adopt(const SlotMap& map);
  void assign(std::uint32_t group, Node* node);
  // The set in which the agents that use that node are counted: in the first group that it keeps.
  [[nodiscard]] std::string agents_key(const Node& node) const;
  // The node at that address, known or made; null: there are too many.
  [[nodiscard]] Node* node_at(const NodeAddress& address);
  // Where an error sends a question that `from` was asked; null: nowhere.
  [[nodiscard]] Node* node_of(std::string_view redirection, const RedisEndpoint& from);
  void forget_clock(Group& group);
  [[nodiscard]] const Node* node_with(const Shard& shard) const;
  [[nodiscard]] std::vector<RedisEndpoint> answering_nodes() const;
  // Of the reset of that number: sends it, hears of it, sends it once more after a pause, ends it.
  void send_reset(std::uint64_t number, Node* node, bool is_asking);
  void on_reset(std::uint64_t number, const RedisEndpoint& from, const Reply& reply);
  void repeat_reset(std::uint64_t number);
  void end_reset(std::uint64_t number, bool is_done);
  void watch_nodes();
  // Nobody is known to keep it, or who does is known not to answer.
  [[nodiscard]] static bool is_missed(const Group& group);
  void ask_for_keeper(std::uint32_t group);
  void on_keeper(std::uint32_t group, const RedisEndpoint& from, const Reply& reply);
  void retire(const Node& node);
  void share_out_questions();
  // Valid until the next call.
  [[nodiscard]] std::string_view redis_key(std::uint32_t group, std::string_view limit_tag,
                                           std::string_view key) const;

  loop::Loop& loop_;
  RedisEndpoint seed_;  // how nodes are signed in to
  Options options_;
  std::shared_ptr<TlsMaterial> tls_;  // null: none is wanted
  KeyGroups key_groups_;
  std::shared_ptr<std::uint32_t> epochs_ = std::make_shared<std::uint32_t>(0);
  SharedSink* sink_ = nullptr;
  std::map<std::string, Node> nodes_;  // by address
  std::array<Group, KeyGroups::kGroups> groups_{};
  std::map<std::uint64_t, Reset> resets_;  // by number
  std::uint64_t last_reset_ = 0;
  SteadyTime watched_at_{};
  SteadyTime ask_keeper_at_{};  // not before
  std::uint64_t keeper_questions_total_ = 0;
  std::uint64_t nodes_made_ = 0;
  std::uint64_t redirections_total_ = 0;
  std::vector<stats::Metric> retired_;  // what nodes counted that have ended
  std::mt19937_64 random_;
  SlotMapWatch watch_;
  mutable std::string key_;  // scratch
};

}  // namespace allowd::store
