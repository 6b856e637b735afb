// SPDX-License-Identifier: MIT
//
// The seam between deciding and keeping: a Store knows what each key has used, and settles one question about
// one key at a time, exactly as limiter/ would.
//
// Threads    One; the loop's.
// Ownership  A Question borrows everything; a store copies what it needs past `ask`.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/limiter/definition.h"
#include "agent/stats/metric.h"
#include "agent/store/key_hash.h"

namespace allowd::store {

// The host's monotonic clock, as read once per loop turn.
using SteadyTime = std::chrono::time_point<std::chrono::steady_clock, limiter::Micros>;

// Names a limit in front of its keys so that no two (limit, key) pairs meet, and no two kinds of state: kind
// of limit ('n' configured, 'o' the overflow of one, 'i' brought inline by an application), kind of state,
// length of the name, the name. "n3:api:" + key for a bucket, "nt5:login:" + key for tiers.
[[nodiscard]] inline std::string make_limit_tag(char kind, std::string_view name,
                                                std::string_view state_kind) {
  return kind + std::string(state_kind) + std::to_string(name.size()) + ":" + std::string(name) + ":";
}

// One of several smaller limits that stand for one, for each key on a server of its own.
struct Part {
  limiter::DefinitionPtr definition;
  std::string limit_tag;
};

// Who says how many keys that a store does not know yet may become known to it.
class KeyBudget {
 public:
  // Whether one more may at `now`. False: its query is turned over to the limit's overflow.
  [[nodiscard]] virtual bool admit(SteadyTime now) = 0;

 protected:
  ~KeyBudget() = default;
};

// What decides about keys that are not admitted, or have no room: one state that all of them share.
struct Overflow {
  KeyBudget* budget = nullptr;  // null: all are admitted
  limiter::DefinitionPtr definition;
  std::string tag;  // its limit_tag; its key is ""
  KeyHash hash = hash_openly(tag, "");
};

struct Question {
  limiter::Operation operation = limiter::Operation::take;
  const limiter::Definition* definition = nullptr;
  std::string_view limit_tag;  // see make_limit_tag
  std::string_view key;
  std::int64_t cost = 1;
  std::uint64_t ticket = 0;            // the asker's own, handed back with the answer
  SteadyTime deadline{};               // when the asker is answered otherwise
  std::int64_t lease = 0;              // so many permits may be taken ahead while the key is hot
  const Overflow* overflow = nullptr;  // null: without room, keys share the state of `definition`
  bool is_about_overflow = false;      // rather than about the key
  std::span<const Part> parts = {};    // a shared store asks these in place of the definition, largest first
  std::uint32_t first_part = 0;        // the one that is asked first, counted from this host's own
  // Stands for tag and key. Who lets strangers choose them makes it under a secret.
  KeyHash hash = hash_openly(limit_tag, key);

  // Of a limit in parts which one is asked first, and what stands for the key there. Hosts, whose secrets
  // differ, have different ones of their own, each always the same one for a key.
  [[nodiscard]] std::size_t part() const { return (hash.high + first_part) % parts.size(); }
  [[nodiscard]] KeyHash state_hash() const { return parts.empty() ? hash : hash_in_part(hash, part()); }
  [[nodiscard]] static KeyHash hash_in_part(const KeyHash& key, std::size_t part) {
    constexpr std::uint64_t kFarApart = 0x9e3779b97f4a7c15;  // odd: no two parts have one salt
    return key.salted((part + 1) * kFarApart);
  }

  // The same about what the limit's overflow, which there must be, keeps for all of its keys.
  [[nodiscard]] Question turned_over() const {
    Question about = *this;
    about.definition = overflow->definition.get();
    about.limit_tag = overflow->tag;
    about.key = {};
    about.parts = {};
    about.hash = overflow->hash;
    return about;
  }

  // Whether a store that does not know the key would keep it from now on.
  [[nodiscard]] bool makes_known() const {
    if (cost == 0) return false;
    if (operation == limiter::Operation::take) return definition->can_hold(cost);
    return operation == limiter::Operation::force;
  }
  [[nodiscard]] bool is_admitted(SteadyTime now) const {
    return overflow == nullptr || overflow->budget == nullptr || !makes_known() ||
           overflow->budget->admit(now);
  }
};

struct Answer {
  enum class Status : std::uint8_t {
    decided,
    failed,    // nobody knows: the failure policy decides
    promised,  // not known yet: the sink will be told
  };
  Status status = Status::failed;
  bool by_overflow = false;  // not the key's own state answered, but the one that its limit's overflow shares
  limiter::Decision decision{};
  bool is_local = false;    // of a shared store: decided on this host, from what the store said before
  bool is_unasked = false;  // failed: for certain, nothing has been done
};

// Whole permits that are left of each tier, as far as that is known.
using KnownLeft = std::array<std::optional<std::int64_t>, limiter::Definition::kMaxTiers>;

// How much of a force's cost a tier had left to take: so many parts of a permit, `unit` of which are one.
struct Taken {
  std::int64_t units = 0;
  std::int64_t unit = 1;

  bool operator==(const Taken&) const = default;
};

// Who waits for answers that could not be given at once.
class AnswerSink {
 public:
  // What became of an answer, so that a store can give back what nobody got.
  enum class Fate : std::uint8_t {
    delivered,
    refused_meanwhile,  // too late: the asker was told no
    allowed_meanwhile,  // too late: the asker was told yes
  };
  virtual Fate on_answer(std::uint64_t ticket, const Answer& answer, SteadyTime now) = 0;
  // The same of a force, just before that, if the store knows it: of each tier.
  virtual void on_taken(std::uint64_t /*ticket*/, std::span<const Taken> /*by_tier*/) {}
  // False once the asker was answered otherwise.
  [[nodiscard]] virtual bool is_waiting(std::uint64_t ticket) const = 0;

 protected:
  ~AnswerSink() = default;
};

class Store : public stats::MetricSource {
 public:
  // Who gets the answers that `ask` does not give at once.
  virtual void attach(AnswerSink&) {}

  // Answers at once, or promises exactly one call of the sink's on_answer for this ticket. Never calls the
  // sink before it returns.
  [[nodiscard]] virtual Answer ask(const Question& question, SteadyTime now) = 0;

  // Asks the questions, about different keys, as one: all pass, or none is charged and those that would pass
  // answer as a peek. True: promised, as by ask. False: this store cannot do these at once, and nothing was
  // asked.
  [[nodiscard]] virtual bool ask_together(std::span<const Question> questions) = 0;

  // Forgets all that the question's key has used under its limit, then calls `done`, maybe before returning.
  // False: nobody knows whether it is forgotten.
  virtual void reset(const Question& question, std::function<void(bool)> done) = 0;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // Whether answers come from this host alone.
  [[nodiscard]] virtual bool is_local() const = 0;
  // False while the store, or a server that keeps some of it, is known not to answer.
  [[nodiscard]] virtual bool is_available() const = 0;
  // The servers behind it, for people: a line each, below a heading.
  [[nodiscard]] virtual std::string describe_shards() const = 0;
  // Which of them keeps the question's key, always the same one.
  [[nodiscard]] virtual std::size_t shard_of(const Question&) const { return 0; }
  // Another number, or none, as soon as that one may be a server that never heard of what was charged before.
  [[nodiscard]] virtual std::optional<std::uint32_t> epoch(std::size_t /*shard*/, SteadyTime /*now*/) const {
    return 0;
  }
  // How long until that one is tried again; at least 1 µs, which means that it is known to answer.
  [[nodiscard]] virtual limiter::Micros next_probe_in(std::size_t shard, SteadyTime now) const = 0;
  // Somebody was answered otherwise, having waited so long for what that one keeps.
  virtual void note_expired(std::size_t /*shard*/, limiter::Micros /*waited*/, SteadyTime /*now*/) {}
  // How many agents share what that one keeps, as it was counted last; none: not known.
  [[nodiscard]] virtual std::optional<std::uint32_t> agents(std::size_t /*shard*/) const {
    return std::nullopt;
  }
  // The same of the one that most share.
  [[nodiscard]] virtual std::optional<std::uint32_t> most_agents() const { return std::nullopt; }
  // What is left of the question's key now, by what a store that answers no more said last: at most that.
  [[nodiscard]] virtual KnownLeft known_left(const Question&, SteadyTime /*now*/) { return {}; }
};

}  // namespace allowd::store
