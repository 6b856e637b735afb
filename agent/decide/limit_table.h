// SPDX-License-Identifier: MIT
//
// The limits that queries can name: those of the config, and a cache of those that applications bring along.
//
// Ownership  Limits are shared: a query in flight keeps the definition that it began with, whatever is loaded
//            meanwhile.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/config/config.h"
#include "agent/decide/key_budget.h"
#include "agent/stats/registry.h"
#include "agent/store/store.h"
#include "protocol/request.h"
#include "tsl/robin_map.h"

namespace allowd::decide {

// Of names in a config or in memory; keys have a hash under a secret.
struct NameHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const;
};

// For names, which are short: calling memcmp takes longer than comparing them.
[[nodiscard]] inline bool are_equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  const auto differ_at = [&](std::size_t at, auto word) {
    auto other = word;
    std::memcpy(&word, a.data() + at, sizeof word);
    std::memcpy(&other, b.data() + at, sizeof word);
    return word != other;
  };
  const std::size_t size = a.size();
  std::size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    if (differ_at(at, std::uint64_t{})) return false;
  }
  // What is left, with some of what was compared already if there are enough bytes.
  if (size >= 8) return at == size || !differ_at(size - 8, std::uint64_t{});
  if (size >= 4) return !differ_at(0, std::uint32_t{}) && !differ_at(size - 4, std::uint32_t{});
  for (; at < size; ++at) {
    if (a[at] != b[at]) return false;
  }
  return true;
}

// What decides about a key, and where it counts.
struct Rule {
  config::Override::Kind kind = config::Override::Kind::definition;
  limiter::DefinitionPtr definition;                // of that kind
  std::string tag;                                  // see store::make_limit_tag
  std::uint64_t salt = 0;                           // of a key's hash, for what is kept under that tag
  std::vector<stats::DecisionCounters*> decisions;  // by tier; of the other kinds one
  std::int64_t lease = 0;                           // see store::Question
  std::vector<store::Part> parts;                   // likewise

  // What a query is asked to pass at a store that hosts share: of a limit in parts the smallest.
  [[nodiscard]] const limiter::Definition& asked() const {
    return parts.empty() ? *definition : *parts.back().definition;
  }
};

// One of the ways in which a store keeps what a limit's keys have used.
struct KeptAs {
  std::string tag;
  std::uint64_t salt = 0;  // as the rule's
  limiter::DefinitionPtr definition;
  std::vector<store::Part> parts;
};

class Limit {
 public:
  // `budget` is null or outlives it.
  Limit(const config::LimitConfig& config, stats::Registry& registry, const store::KeyHasher& hasher,
        KeyBudget* budget);
  // One that an application brought along. One label for all of them: applications choose the names, and
  // labels must stay few.
  Limit(std::string name, limiter::DefinitionPtr definition, limiter::Micros deadline,
        stats::Registry& registry, const store::KeyHasher& hasher);
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

  // Whose numbers count for that key under that plan: an override for the key, else the plan, else the
  // limit's.
  [[nodiscard]] const Rule& rule_for(std::string_view key, std::string_view plan) const {
    return has_one_rule_ ? base_ : find_rule(key, plan);
  }
  // Whether there is such a plan.
  [[nodiscard]] bool has_plan(std::string_view plan) const { return plans_.contains(plan); }

  [[nodiscard]] const std::string& name() const { return name_; }
  // What its keys are counted under.
  [[nodiscard]] const stats::KeptName& label() const { return label_; }
  // Stands for the limit and that key, whatever rule decides about it. A store is told it with the salt of
  // the rule's tag.
  [[nodiscard]] store::KeyHash hash_of(std::string_view key) const {
    return store::KeyHasher::hash(key_seed_, key);
  }
  [[nodiscard]] const Rule& base() const { return base_; }
  [[nodiscard]] bool is_host_wide() const { return is_host_wide_; }
  [[nodiscard]] bool may_refund() const { return may_refund_; }
  [[nodiscard]] config::FailurePolicy on_failure() const { return on_failure_; }
  // Between how many agents it is shared when each is on its own; 0: as many as there are known to be.
  [[nodiscard]] std::int64_t local_share() const { return local_share_; }
  [[nodiscard]] limiter::Micros deadline() const { return deadline_; }
  [[nodiscard]] std::size_t overrides() const { return exact_.size() + prefixes_.size(); }
  [[nodiscard]] std::size_t plans() const { return plans_.size(); }
  // Where a key may have used something: as a bucket, as tiers, and as every definition that the limit has
  // now. Logs and counters of other windows, which an earlier config had, are not known.
  [[nodiscard]] const std::vector<KeptAs>& kept_as() const { return kept_as_; }
  // What decides about keys that have no place; null: of an application's limit, the keys' own definition.
  [[nodiscard]] const store::Overflow* overflow() const { return overflow_ ? &*overflow_ : nullptr; }
  [[nodiscard]] stats::DecisionCounters& overflows() const { return *overflows_; }  // of tier "overflow"

 private:
  template <class Value>
  using Map = tsl::robin_map<std::string, Value, NameHash, std::equal_to<>>;

  [[nodiscard]] Rule make_rule(limiter::DefinitionPtr definition, stats::Registry& registry,
                               const store::KeyHasher& hasher);
  void note_kept_as(std::string tag, std::uint64_t salt, const limiter::DefinitionPtr& definition);
  void add_override(const config::Override& override, stats::Registry& registry,
                    const store::KeyHasher& hasher);
  [[nodiscard]] const Rule& find_rule(std::string_view key, std::string_view plan) const;

  std::string name_;
  std::vector<KeptAs> kept_as_;
  stats::KeptName label_;
  std::uint64_t key_seed_;
  config::LeaseSize lease_;
  std::int64_t split_ = 1;
  Rule base_;
  Map<Rule> exact_;
  std::vector<std::pair<std::string, Rule>> prefixes_;  // the longest first
  Map<Rule> plans_;
  bool has_one_rule_ = true;  // neither overrides nor plans
  bool is_host_wide_ = false;
  bool may_refund_ = false;
  config::FailurePolicy on_failure_ = config::FailurePolicy::allow;
  std::int64_t local_share_ = 0;
  limiter::Micros deadline_;
  std::optional<store::Overflow> overflow_;
  stats::DecisionCounters* overflows_;
};

using LimitPtr = std::shared_ptr<const Limit>;

class LimitTable {
 public:
  // Parsed inline definitions that are kept.
  static constexpr std::size_t kMaxInline = 1024;

  // `secret` should be random: keys are told apart by hashes under it. Only tests do without.
  LimitTable(const config::Config& config, stats::Registry& registry, const store::HashSecret& secret = {});
  LimitTable(const LimitTable&) = delete;
  LimitTable& operator=(const LimitTable&) = delete;

  // Replaces all configured limits at once.
  void load(const config::Config& config);
  // So many agents share the store, at least 1: budgets of new keys, but for those of limits that each host
  // keeps by itself, are divided by it.
  void share_between(std::uint32_t agents);

  // The configured limit of that name, else the one named `default`; null: there is neither.
  [[nodiscard]] const LimitPtr* find(std::string_view name) const {
    // Most queries name the limit that the one before named.
    return last_found_ != nullptr && are_equal(name, last_name_) ? last_found_ : find_by_name(name);
  }
  // The limit that an application defined.
  [[nodiscard]] Result<LimitPtr> find_or_parse(const protocol::InlineLimit& definition);

  [[nodiscard]] const std::vector<LimitPtr>& configured() const { return configured_; }
  // Queries about new keys that were turned over to the overflow of their limit.
  [[nodiscard]] std::uint64_t new_keys_refused() const;

 private:
  using Map = tsl::robin_map<std::string, LimitPtr, NameHash, std::equal_to<>>;

  [[nodiscard]] const LimitPtr* find_by_name(std::string_view name) const;

  stats::Registry& registry_;
  store::KeyHasher hasher_;
  limiter::Micros default_deadline_{};
  bool shadow_ = false;
  std::uint32_t agents_ = 1;
  std::vector<LimitPtr> configured_;
  mutable const LimitPtr* last_found_ = nullptr;
  mutable std::string_view last_name_;  // its own
  Map by_name_;
  struct Budget {
    explicit Budget(const std::string& limit) : keys(limit) {}

    KeyBudget keys;
    std::int64_t most = 0;  // new keys a second
    bool is_shared = false;
  };
  void set_rate(Budget& budget) const;

  std::map<std::string, Budget> budgets_;  // of all limits that ever had one: they stay where they are
  Map inline_;                             // by the definition's encoding
  std::deque<std::string> inline_order_;   // oldest first
};

}  // namespace allowd::decide
