// SPDX-License-Identifier: MIT
//
// The embedded store: limits of this host alone, exact, bounded, answered at once.
//
// A key that the table has no room for, or that its limit does not admit, is decided by its limit's overflow
// bucket, which all such keys of that limit share: stricter for them, never a full bucket for a key that was
// merely forgotten.
//
// Time       `now` is an argument; `epoch_offset` turns the loop's monotonic time into time since the epoch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "agent/store/memory/key_table.h"
#include "agent/store/store.h"

namespace allowd::store {

class MemoryStore final : public Store {
 public:
  struct Options {
    std::size_t max_keys = 262'144;
    limiter::Micros epoch_offset{0};
    HashSecret secret{};
  };

  explicit MemoryStore(const Options& options);

  // What `ask` does, at a shard time that the caller chooses.
  Answer decide(const Question& question, limiter::TimePoint now);

  // Forgets all use of a key, whatever it was counted by.
  void forget(const limiter::Definition& definition, const KeyHash& hash);

  // Forgets some of the keys that have been full for a minute. Call twice a second: each key is looked at
  // about once a minute, in steps of well under a millisecond. False: nothing is left to sweep.
  bool sweep(SteadyTime now);
  [[nodiscard]] bool is_empty() const { return table_.size() == 0 && logs_.empty(); }

  [[nodiscard]] Answer ask(const Question& question, SteadyTime now) override {
    return decide(question, at(now));
  }
  [[nodiscard]] bool ask_together(std::span<const Question>) override { return false; }
  void reset(const Question& question, std::function<void(bool)> done) override {
    forget(*question.definition, question.hash);
    done(true);
  }
  [[nodiscard]] std::string describe_shards() const override { return "# name\nmemory\n"; }
  [[nodiscard]] std::string_view name() const override { return "memory"; }
  [[nodiscard]] bool is_local() const override { return true; }
  [[nodiscard]] bool is_available() const override { return true; }
  [[nodiscard]] limiter::Micros next_probe_in(std::size_t, SteadyTime) const override {
    return limiter::Micros{1};
  }
  void collect(std::vector<stats::Metric>& metrics) const override;

 private:
  [[nodiscard]] limiter::TimePoint at(SteadyTime now) const {
    return limiter::TimePoint{now.time_since_epoch() + epoch_offset_};
  }
  // The stamps of a sliding_log, kept beside the table and counted as so many of its entries.
  struct Log {
    limiter::LogState stamps;
    limiter::TimePoint leaves_at{};
    std::size_t places = 0;
  };
  struct SharedState {
    limiter::TierState state;
    limiter::LogState stamps;
  };

  // Of a key's tier.
  [[nodiscard]] KeyHash hash_of(const KeyHash& key, const limiter::Tier& tier) const {
    return key.salted(hasher_.seed(tier.identity()));
  }
  // A key that is not there: whether its limit admits it.
  [[nodiscard]] bool is_admitted(const Question& question, limiter::TimePoint now) const {
    return question.is_admitted(SteadyTime{now.time_since_epoch() - epoch_offset_});
  }
  Answer decide_one(const Question& question, limiter::TimePoint now);
  [[gnu::always_inline]] static Answer decide_known(const Question& question, KeyEntry& entry,
                                                    limiter::TimePoint now);
  Answer decide_new(const Question& question, limiter::TimePoint now);
  Answer decide_tiers(const Question& question, limiter::TimePoint now);
  Answer decide_log(const Question& question, limiter::TimePoint now);
  Answer decide_without_room(const Question& question, limiter::TimePoint now);
  Answer decide_by_overflow(const Question& question, limiter::TimePoint now);
  [[nodiscard]] static limiter::TimePoint leaves_at(const limiter::TierState& state, limiter::TimePoint now,
                                                    const limiter::Decision& decision);
  static void keep(KeyEntry& entry, limiter::TimePoint now, const limiter::Decision& decision);
  [[nodiscard]] bool has_room_for_log(std::size_t places, limiter::TimePoint now);
  void sweep_logs(std::size_t count, limiter::TimePoint now);

  limiter::Micros epoch_offset_;
  KeyHasher hasher_;
  KeyTable table_;
  std::map<KeyHash, Log> logs_;  // a tree: it never has to be grown at one blow
  KeyHash next_swept_log_{};
  tsl::robin_map<std::string, SharedState> overflow_;  // by limit tag and tier
  std::uint64_t overflow_decisions_ = 0;
};

}  // namespace allowd::store
