// SPDX-License-Identifier: MIT
//
// The store that all hosts share: one Redis server, or several that know nothing of each other and share the
// keys out by rendezvous hashing of the Redis key over their names.
//
// Each server has its own connection, clock, batches and failures: one that is down or slow takes nothing
// from the keys of the others.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/store/redis/link/endpoint.h"
#include "agent/store/redis/remote_store.h"
#include "agent/store/redis/shard.h"
#include "agent/store/redis/topology/rendezvous.h"

namespace allowd::store {

class RedisStore final : public RemoteStore {
 public:
  struct Servers {
    std::vector<RedisNode> nodes;           // at least one; no two names alike
    std::optional<SentinelGroup> sentinel;  // who knows where the only node is
  };

  RedisStore(loop::Loop& loop, const Servers& servers, const Options& options);

  void start() override;
  void flush() override;
  void leave() override;

  void attach(SharedSink& sink) override;
  [[nodiscard]] std::uint32_t shard_of(std::string_view limit_tag, std::string_view key,
                                       std::size_t rank) const override;
  [[nodiscard]] std::uint32_t shards() const override { return static_cast<std::uint32_t>(shards_.size()); }
  [[nodiscard]] std::optional<ShardTime> time_of(std::uint32_t shard, SteadyTime now) const override;
  [[nodiscard]] bool ask(const SharedQuestion& question) override;
  // For keys of one shard.
  [[nodiscard]] bool ask_together(std::span<const SharedQuestion> questions) override;
  void reset(std::uint32_t shard, std::string_view limit_tag, std::string_view key,
             std::function<void(bool)> done) override;
  [[nodiscard]] std::string describe_shards() const override;
  [[nodiscard]] std::string_view name() const override { return "redis"; }
  [[nodiscard]] bool is_available() const override;
  [[nodiscard]] limiter::Micros next_probe_in(std::uint32_t shard, SteadyTime now) const override;
  void note_expired(std::uint32_t shard, limiter::Micros waited, SteadyTime now) override {
    shards_[shard]->note_expired(waited, now);
  }
  [[nodiscard]] std::optional<std::uint32_t> agents(std::uint32_t shard) const override {
    return shards_[shard]->agents();
  }
  void collect(std::vector<stats::Metric>& metrics) const override;

 private:
  // Valid until the next call.
  [[nodiscard]] std::string_view redis_key(std::string_view limit_tag, std::string_view key) const;

  std::string prefix_;
  std::vector<std::string> names_;
  Rendezvous rendezvous_;
  std::vector<std::unique_ptr<Shard>> shards_;  // as in names_
  mutable std::string key_;                     // scratch
};

}  // namespace allowd::store
