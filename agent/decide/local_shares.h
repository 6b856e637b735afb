// SPDX-License-Identifier: MIT
//
// What this host admits of limits whose store does not answer: for each key its share of the limit
// (limiter/share.h), counted here alone.
//
// Start      A key's share begins with its part of what was last known to be left of the key (whole permits
//            over the number of agents, rounded down); full if that was all, or is not known.
// After      Use that the store has not seen is debited from it, once, before it is asked about the key
//            again. That is what the share misses beyond what it would miss if nobody had asked here: what
//            was missing at the start is in the store already, and what has come back since has come back
//            there too. Of several tiers it is the most that any misses, for a force is charged to all: the
//            quicker tiers are emptied by that for no longer than they take to fill.
// Hold       For three seconds from then on the key has to pass its share, too: other agents may not have
//            come back yet, and what the store seems to have left is theirs.
// Debt       Who comes back later finds that others have used up what it owes. What a debit does not find
//            stays owed: the key is refused here, and debited again whenever a permit may have come back,
//            until all is paid or the share is full.
// Bound      `max_keys`, at most kMostKeys. Beyond, new keys of a limit decide on one share that they have in
//            common, which nobody is debited for. A key leaves once its share is full, or debited and
//            no longer held.
// Parts      Of a limit in parts each part has a share of its own: a question is about the one that it asks
//            first, and its definition is that part's.
//
// Threads    One.
// Units      Whole permits; the host's monotonic clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/limiter/arithmetic.h"
#include "agent/stats/metric.h"
#include "agent/store/key_hash.h"
#include "agent/store/store.h"

namespace allowd::decide {

class LocalShares {
 public:
  static constexpr std::size_t kMostKeys = 65'536;
  static constexpr limiter::Micros kHold = std::chrono::seconds(3);

  struct Debit {
    std::uint64_t number = 0;
    std::int64_t permits = 0;  // at least 1
  };
  enum class Outcome : std::uint8_t {
    charged,
    unasked,  // the debit is still owed
    unknown,  // it may have been charged, and is not repeated
  };

  // `store` says what was left, and of questions their hashes stand for what they are about.
  LocalShares(store::Store& store, std::size_t max_keys);

  // What the share of one of `agents` says about the question. None: there is no such share. `never` says
  // that the share cannot hold so much, whatever the limit can.
  [[nodiscard]] std::optional<store::Answer> decide(const store::Question& question, std::int64_t agents,
                                                    store::SteadyTime now);

  // What is to be debited for the question's key; none also while a debit of the key is under way.
  // `end_debit` must follow, once.
  [[nodiscard]] std::optional<Debit> begin_debit(const store::Question& question, store::SteadyTime now);
  // So much of a debit under way there was; without this call: all.
  void note_taken(std::uint64_t number, std::span<const store::Taken> by_tier);
  void end_debit(std::uint64_t number, Outcome outcome, store::SteadyTime now);
  // The store has charged the question's cost as of `asked_at`, late: so much of what was granted here is not
  // to be debited. What has come back since pays for nothing: then false, and nothing has changed unless the
  // rest shall count (`in_part`). False also where less is owed, or a debit is under way.
  bool take_as_paid(const store::Question& question, store::SteadyTime asked_at, bool in_part,
                    store::SteadyTime now);
  // Before a take or a peek goes to the store: takes it from the share of a key that is held. An answer: the
  // share refuses it, or the key's debt does.
  [[nodiscard]] std::optional<store::Answer> hold(const store::Question& question, store::SteadyTime now);
  [[nodiscard]] bool is_held(const store::Question& question, store::SteadyTime now) const;
  void forget(const store::KeyHash& hash) { entries_.erase(hash); }

  [[nodiscard]] bool is_empty() const { return entries_.empty(); }
  // Of none, when there are no shares yet: always the same metrics in the same order.
  static void collect(const LocalShares* shares, std::vector<stats::Metric>& metrics);

 private:
  struct Entry {
    limiter::DefinitionPtr share;
    std::vector<limiter::TierState> states;
    std::vector<limiter::TierState> known;  // what of their use the store knows: the rest is to be debited
    std::uint64_t debit = 0;                // the one that is under way
    bool was_away = false;                  // the store, rather than late
    bool is_in_debt = false;                // the last debit did not find all
    store::SteadyTime next_debit_at{};      // not before
    store::SteadyTime held_until{};         // from when it answers again
  };
  struct OpenDebit {
    store::KeyHash hash{};
    std::vector<std::int64_t> permits;  // of each tier
    std::int64_t most = 0;
    limiter::Micros pause{0};         // after which there may be something to take, if there was not all
    std::vector<store::Taken> taken;  // of each tier; empty: all
  };
  using Entries = std::map<store::KeyHash, Entry>;  // a tree: it never has to be grown at one blow

  [[nodiscard]] limiter::DefinitionPtr share_for(const limiter::Definition& definition, std::int64_t agents);
  [[nodiscard]] Entry begin(const store::Question& question, limiter::DefinitionPtr share,
                            std::int64_t agents, store::SteadyTime now);
  // The entry counts by that share from now on.
  static void adopt(Entry& entry, limiter::DefinitionPtr share, limiter::TimePoint at);
  static void advance(Entry& entry, limiter::TimePoint at);
  // Of an entry that was advanced: whether it says nothing that the store does not.
  [[nodiscard]] static bool is_over(const Entry& entry, store::SteadyTime now);
  // What is to be debited of each tier, of an entry that was advanced, and the most of it.
  [[nodiscard]] static OpenDebit owed(const Entry& entry, const store::KeyHash& hash);
  // Refuses whatever asks to pass, until the next debit.
  [[nodiscard]] static limiter::Decision refuse(const Entry& entry, const store::Question& question,
                                                store::SteadyTime now);
  // The store knows of so many of the tier's units more that were taken here.
  static void note_known(Entry& entry, std::size_t tier, limiter::Wide units);
  // Looks at the next few keys, and drops those that are over.
  void sweep(store::SteadyTime now);

  store::Store& store_;
  std::size_t max_keys_;
  Entries entries_;
  store::KeyHash next_swept_{};
  std::map<std::uint64_t, OpenDebit> debits_;  // by number
  std::uint64_t last_debit_ = 0;
  // Shares of definitions, which it keeps alive so that no other takes their place.
  std::map<std::pair<const limiter::Definition*, std::int64_t>,
           std::pair<limiter::DefinitionPtr, limiter::DefinitionPtr>>
      shares_;
  std::uint64_t decisions_total_ = 0;
  std::uint64_t debits_total_ = 0;
  std::uint64_t debited_total_ = 0;
  std::uint64_t debits_unknown_total_ = 0;
  std::uint64_t debits_short_total_ = 0;
};

}  // namespace allowd::decide
