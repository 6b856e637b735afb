// SPDX-License-Identifier: MIT
//
// What keeps a shared store from being asked: a bound of what is left of each key, and one queue per key.
//
//   refuse    What cannot pass by the key's bound (level.h) is refused here, as the store would. A bound is
//             trusted for `trust` after the store spoke; other rules, or a clock that jumped, drop it.
//   queue     One question per key is under way at a time. Who asks meanwhile waits; then the waiters pass
//             the bound once more, in order, and those who are left go together into the next question. So
//             the busier a key, the more of its queries share one, and an idle one waits for nothing. In
//             prefilter_queues.cc; what comes of a question in prefilter_answers.cc.
//   lease     Of a key that is hot and allowed, permits are taken ahead and granted here (lease.h), if its
//             limit says so. In prefilter_leases.cc.
//   split     Of a limit in parts, each on a server of its own, this host prefers one part of a key and
//             tries the others when that one refuses; it is refused when all have. In prefilter_parts.cc.
//   hold      Where the store keeps refusing what the bound had let through, others are draining the key.
//             Questions about it are then spaced: by one permit's refill, twice that, and so on up to `hold`,
//             until one is granted.
//
// A key counts as known while it has an entry. Where its limit has a budget of new keys, only what charges
// makes a key known, and one that the budget does not admit is asked as the limit's overflow, a key like any
// other: it is refused, queued and held back as all are.
//
// A waiter that was answered otherwise leaves the queue; what was granted to it late is given back.
//
// Threads    One; the loop's.
// Ownership  A limit's definition must outlive the tickets of its open questions.
// Source     The bound is the usual token bucket in front of a remote one (golang.org/x/time/rate is the
//            classic form); the queue is natural batching, as group commit in databases.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/prefilter/key_cache.h"
#include "agent/prefilter/lease.h"
#include "agent/store/key_hash.h"
#include "agent/store/shared_store.h"

namespace allowd::prefilter {

using store::SteadyTime;

class Prefilter final : public store::Store, private store::SharedSink {
 public:
  struct Options {
    limiter::Micros trust = std::chrono::seconds(1);
    limiter::Micros hold = std::chrono::milliseconds(100);
    std::size_t max_keys = 262'144;    // known at a time
    std::size_t max_waiting = 65'536;  // queries; beyond, one fails at once
  };

  Prefilter(store::SharedStore& store, const Options& options);

  // Puts the questions of this turn to the store. Call at its end, before the store sends.
  void flush(SteadyTime now);
  [[nodiscard]] bool has_unasked() const { return !to_ask_.empty(); }
  // When flush is needed next for what nobody asks, if at all.
  [[nodiscard]] std::optional<SteadyTime> next_wake() const;
  // Gives back what was taken ahead: the agent stops.
  void end_leases(SteadyTime now);

  void attach(store::AnswerSink& sink) override { sink_ = &sink; }
  [[nodiscard]] store::Answer ask(const store::Question& question, SteadyTime now) override;
  [[nodiscard]] bool ask_together(std::span<const store::Question> questions) override;
  void reset(const store::Question& question, std::function<void(bool)> done) override;
  [[nodiscard]] std::string_view name() const override { return store_.name(); }
  [[nodiscard]] bool is_local() const override { return false; }
  [[nodiscard]] bool is_available() const override { return store_.is_available(); }
  [[nodiscard]] std::string describe_shards() const override { return store_.describe_shards(); }
  [[nodiscard]] std::size_t shard_of(const store::Question& question) const override;
  [[nodiscard]] limiter::Micros next_probe_in(std::size_t shard, SteadyTime now) const override {
    return store_.next_probe_in(static_cast<std::uint32_t>(shard), now);
  }
  [[nodiscard]] std::optional<std::uint32_t> epoch(std::size_t shard, SteadyTime now) const override {
    const auto time = store_.time_of(static_cast<std::uint32_t>(shard), now);
    return time ? std::optional(time->epoch) : std::nullopt;
  }
  void note_expired(std::size_t shard, limiter::Micros waited, SteadyTime now) override {
    store_.note_expired(static_cast<std::uint32_t>(shard), waited, now);
  }
  [[nodiscard]] std::optional<std::uint32_t> agents(std::size_t shard) const override {
    return store_.agents(static_cast<std::uint32_t>(shard));
  }
  [[nodiscard]] std::optional<std::uint32_t> most_agents() const override;
  [[nodiscard]] store::KnownLeft known_left(const store::Question& question, SteadyTime now) override;
  void collect(std::vector<stats::Metric>& metrics) const override;

 private:
  using QueueIndex = std::uint32_t;

  // Tickets of ours that name no row: what is left of a lease.
  static constexpr std::uint64_t kGiveBack = std::uint64_t{1} << 62;
  // The ticket of what is asked together: with this bit, a place in together_.
  static constexpr std::uint64_t kTogether = std::uint64_t{1} << 63;

  struct Waiter {
    std::uint64_t ticket = 0;
    std::int64_t cost = 0;
    SteadyTime deadline{};
    const limiter::Definition* definition = nullptr;
    limiter::Operation operation = limiter::Operation::take;
    std::int64_t lease = 0;
    // Of a limit in parts: all of them, the base's tag and the key's hash under it, how many, counted from
    // this host's own, have not let it pass, and whether one of these gave no answer: what it keeps is for
    // the failure policy to decide then, whatever the others say.
    std::span<const store::Part> parts = {};
    std::string_view limit_tag = {};
    store::KeyHash hash = {};
    std::uint32_t parts_tried = 0;
    bool has_silent_part = false;
    bool by_overflow = false;
  };
  // Waiters in a row who ask the same: one question of the store.
  struct Row {
    std::size_t first;  // into Queue::asked
    std::size_t count;
    std::int64_t lease_part = 0;  // nobody's row: it asks `count` times for so much, ahead
  };
  // Permits taken ahead, and whose they are.
  struct Leased {
    Lease lease;
    store::KeyHash hash;
    std::string limit_tag;
    std::string key;
    std::uint32_t shard;
    std::uint32_t epoch;  // of the shard's time, when the permits were taken
    limiter::DefinitionPtr definition;
    std::int64_t most;
    bool is_asked = false;  // a question for more is under way
  };
  struct Queue {
    store::KeyHash hash;
    std::string limit_tag;
    std::string key;
    std::uint32_t shard = 0;
    std::vector<Waiter> waiting;  // for the next question
    std::vector<Waiter> asked;    // in the one under way
    std::vector<Row> rows;
    std::size_t open_rows = 0;
    std::uint32_t epoch = 0;        // when it was asked
    std::int64_t waiting_cost = 0;  // of the takes among `waiting`
    bool has_refund_waiting = false;
    bool is_listed = false;    // in to_ask_
    bool is_detached = false;  // no entry leads to it: the key has another queue by now, or no entry
    // Of the question under way:
    bool bound_said_yes = false;
    bool was_granted = false;
    std::int64_t least_refused = 0;  // 0: none
    std::int64_t granted = 0;        // permits
    limiter::TimePoint known_at{};   // when the store had spoken before
    bool wants_lease = false;
  };
  struct Together {
    std::uint64_t ticket;
    std::int64_t cost;
  };
  struct SeenTime {
    SteadyTime asked_at{};
    std::optional<store::ShardTime> time;
    // The last that there was.
    SteadyTime known_at{};
    store::ShardTime known{};
  };

  std::int64_t on_answer(std::uint64_t ticket, const store::SharedAnswer& answer, SteadyTime now) override;
  [[nodiscard]] bool is_waiting(std::uint64_t ticket) const override;

  // The shard's time, asked once per turn.
  [[nodiscard, gnu::always_inline]] const std::optional<store::ShardTime>& time_of(std::uint32_t shard,
                                                                                   SteadyTime now) const {
    SeenTime& seen = times_[shard];
    if (seen.asked_at == now) return seen.time;
    seen.asked_at = now;
    seen.time = store_.time_of(shard, now);
    if (seen.time) {
      seen.known_at = now;
      seen.known = *seen.time;
    }
    return seen.time;
  }
  // The refusal of what the key's entry speaks against, counted; not decided: it may pass.
  [[nodiscard]] store::Answer refuse(const KnownKey& key, limiter::Operation operation,
                                     const limiter::Definition& definition, std::int64_t cost,
                                     SteadyTime now);
  // The same in two steps: when it is, if the entry may speak at all; then what it says.
  [[nodiscard, gnu::always_inline]] const store::ShardTime* time_to_refuse(
      const KnownKey& key, limiter::Operation operation, const limiter::Definition& definition,
      std::int64_t cost, SteadyTime now) const;
  [[nodiscard, gnu::always_inline]] store::Answer refuse_at(const store::ShardTime& time, const KnownKey& key,
                                                            const limiter::Definition& definition,
                                                            std::int64_t cost);
  // Turns what the entry lets pass into a refusal, or makes a refusal's wait longer, while the key is held.
  void hold_back(const KnownKey& key, const limiter::Definition& definition, std::int64_t cost,
                 limiter::TimePoint now, limiter::Decision& decision);
  // Whether the key's entry may speak: behind a refund that waits, nothing is certain.
  [[nodiscard]] bool may_refuse(const KnownKey* key) const {
    return key != nullptr && (key->queue == KnownKey::kNoQueue || !queues_[key->queue].has_refund_waiting);
  }
  // What `ask` does about a key whose entry, if it has one, is `key`; of one that has a lease; of others.
  [[gnu::always_inline]] store::Answer ask_about(const store::Question& question, KnownKey* key,
                                                 const store::KeyHash& hash, SteadyTime now);
  store::Answer ask_lease(const store::Question& question, KnownKey& key, const store::KeyHash& hash,
                          SteadyTime now);
  [[gnu::always_inline]] store::Answer ask_bound(const store::Question& question, KnownKey* key,
                                                 const store::KeyHash& hash, SteadyTime now);
  // Asks about the one key that all share whom the question's limit does not admit.
  store::Answer ask_overflow(const store::Question& question, SteadyTime now);
  // Whether the question's limit counts new keys.
  [[nodiscard]] static bool has_budget(const store::Question& question) {
    return question.overflow != nullptr && question.overflow->budget != nullptr;
  }
  // Whether those who wait already will leave too little for it, whatever the store says.
  [[nodiscard]] bool is_crowded_out(const Queue& queue, const store::Question& question) const;
  store::Answer enqueue(const store::Question& question, KnownKey* key, const store::KeyHash& hash,
                        SteadyTime now, const Waiter* of_parts = nullptr);
  // What `ask` does about a limit in parts; then: asks the next one that may pass it. The answer of the last:
  // what all refuse.
  store::Answer ask_in_parts(const store::Question& question, SteadyTime now);
  store::Answer ask_parts(Waiter waiter, std::string_view key, SteadyTime now);
  // Which part it asks at that turn, and what stands for the key there.
  [[nodiscard]] static std::size_t part_at(const Waiter& waiter, std::size_t turn);
  [[nodiscard]] static store::KeyHash hash_in_part(const store::KeyHash& key, std::size_t part);
  // A waiter that its part has refused may be passed by another: true when that is asked.
  [[nodiscard]] bool tries_another_part(const Waiter& waiter, std::string_view key, store::Answer& answer,
                                        SteadyTime now);
  store::Answer wait_in(QueueIndex index, const store::Question& question, const Waiter* of_parts);
  void push(QueueIndex index, const Waiter& waiter);
  [[nodiscard]] QueueIndex take_queue(const store::KeyHash& hash, std::string_view limit_tag,
                                      std::string_view key, std::uint32_t shard);
  void list(QueueIndex index);
  void ask_store(QueueIndex index, SteadyTime now);
  void add_rows(Queue& queue, SteadyTime now);
  [[nodiscard]] bool bound_says_yes(const Queue& queue, SteadyTime now);
  // All rows of the question are answered.
  void finish(QueueIndex index, SteadyTime now);
  void note_vain_or_granted(const Queue& queue, KnownKey& key) const;
  void filter_waiting(QueueIndex index, SteadyTime now);
  void free_queue(QueueIndex index);
  std::int64_t settle(Queue& queue, const Row& row, const store::SharedAnswer& answer, SteadyTime now);
  // Leases: grants out of the key's, asks for one of a key that has become hot, takes one in, ends one.
  [[nodiscard]] bool grant(KnownKey& key, const store::Question& question, const store::KeyHash& hash,
                           SteadyTime now, store::Answer& answer);
  void begin_lease(QueueIndex index, KnownKey& key);
  std::int64_t settle_lease(Queue& queue, const Row& row, const store::SharedAnswer& answer, SteadyTime now);
  // Ends it. What is left of it is lost, unless it was given back before.
  void drop_lease(std::uint32_t index);
  void expire_leases(SteadyTime now);
  void forget(const store::KeyHash& hash);
  // To the server that they are from: another one may never have charged them.
  void give_back(const Leased& leased, std::int64_t permits, SteadyTime now);
  void learn(const Queue& queue, const limiter::Definition& definition, const limiter::Decision& decision,
             std::span<const limiter::TierState> states, limiter::TimePoint at, SteadyTime now);
  store::AnswerSink::Fate deliver(const Waiter& waiter, const store::Answer& answer, SteadyTime now);

  store::SharedStore& store_;
  const limiter::Micros trust_;
  const limiter::Micros hold_;
  const std::size_t max_waiting_;
  mutable KeyCache keys_;
  store::AnswerSink* sink_ = nullptr;
  mutable std::vector<SeenTime> times_;  // by shard
  std::deque<Queue> queues_;             // the first is no queue: KnownKey::kNoQueue
  std::vector<QueueIndex> free_queues_;
  std::vector<QueueIndex> to_ask_;
  std::vector<Together> together_;  // what is asked together, by the place that its ticket names
  std::vector<std::size_t> free_together_;
  std::deque<Leased> leases_;  // the first is no lease: KnownKey::kNoLease
  std::vector<std::uint32_t> free_leases_;
  SteadyTime next_expiry_ = SteadyTime::max();
  std::vector<store::Answer> answers_;  // scratch
  std::size_t waiting_ = 0;             // waiters, asked or not

  std::uint64_t refusals_total_ = 0;
  std::uint64_t held_total_ = 0;
  std::uint64_t crowded_out_total_ = 0;
  std::uint64_t leased_grants_total_ = 0;
  std::uint64_t leased_total_ = 0;
  std::uint64_t lease_given_back_total_ = 0;
  std::uint64_t lease_forfeited_total_ = 0;
  std::uint64_t questions_total_ = 0;
  std::uint64_t queries_asked_total_ = 0;
  std::uint64_t turned_away_total_ = 0;
};

}  // namespace allowd::prefilter
