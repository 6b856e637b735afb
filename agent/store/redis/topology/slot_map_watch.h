// SPDX-License-Identifier: MIT
//
// Learns from a Cluster's nodes which of them keeps what, and learns it anew when there is reason to doubt
// it.
//
// Who is asked  A node that is known to answer, each time another one by chance, then the seeds in their
//               order; each has half a second, over TLS a second more. So no node that hangs holds it up for
//               long.
// How often     Once a minute; after a doubt as soon as a second has passed since the last time. While
//               somebody is missed, or nobody answers, after one second, two, and then every four: there is
//               nothing to learn before that one is back or replaced. All with up to a quarter of jitter, so
//               that a fleet does not come as one.
// Logging       One line when nobody answers, one when somebody does again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "agent/loop/timer.h"
#include "agent/store/redis/link/query.h"
#include "agent/store/redis/topology/slot_map.h"

namespace allowd::store {

class SlotMapWatch {
 public:
  // Nodes that are known to answer.
  using Known = std::function<std::vector<RedisEndpoint>()>;
  // Whether the map is of use; called from the loop, when nothing else of the store's is going on.
  using OnMap = std::function<bool(const SlotMap&)>;

  // `tls` is not null if the seeds want it.
  SlotMapWatch(loop::Loop& loop, std::vector<RedisEndpoint> seeds, std::shared_ptr<TlsMaterial> tls,
               std::uint64_t random_seed, Known known, OnMap on_map);

  void start() { begin(); }
  // The map may be wrong. Says nothing that it does not know while it is learning anyway.
  void doubt();
  // The map may change: somebody whom it names does not answer, or it names nobody. To be said again and
  // again while it is so.
  void miss();

  // The seeds, with commas between them.
  [[nodiscard]] std::string seeds() const;
  // What kept the last ones that were asked from saying it, and when they were: empty if one has said it.
  [[nodiscard]] const std::string& why_unknown() const { return why_unknown_; }
  [[nodiscard]] SteadyTime why_unknown_at() const { return why_unknown_at_; }

  void collect(std::vector<stats::Metric>& metrics) const;

 private:
  void begin();
  void ask_next();
  void on_answer(const RedisEndpoint& asked, const Result<Reply>& answer);
  void end(bool has_map);
  void schedule();
  [[nodiscard]] limiter::Micros next_wait();

  loop::Loop& loop_;
  std::vector<RedisEndpoint> seeds_;
  std::shared_ptr<TlsMaterial> tls_;
  Known known_;
  OnMap on_map_;
  std::mt19937_64 random_;
  std::vector<RedisEndpoint> to_ask_;  // the next one last
  std::unique_ptr<Query> query_;
  std::string problems_;  // of those that were asked this time
  std::string why_unknown_;
  SteadyTime why_unknown_at_{};
  SteadyTime began_at_{};
  bool is_asking_ = false;
  bool is_doubted_ = false;
  bool is_missing_ = false;
  int rounds_missing_ = 0;     // times that it was asked for since then, without a doubt
  bool has_reported_ = false;  // that nobody answers
  std::uint64_t refreshes_total_ = 0;
  std::uint64_t failures_total_ = 0;
  loop::Timer timer_;  // for the next time, or the next node
};

}  // namespace allowd::store
