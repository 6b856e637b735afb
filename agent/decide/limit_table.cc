// SPDX-License-Identifier: MIT
#include "agent/decide/limit_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "agent/store/store.h"

namespace allowd::decide {
namespace {

constexpr std::string_view kInline = "inline";
constexpr std::string_view kDefault = "default";

// An application's limit is another one than the config's of that name, hence the kind, as of make_limit_tag.
std::uint64_t key_seed(const store::KeyHasher& hasher, char kind, const std::string& name) {
  return hasher.seed(kind + name);
}

}  // namespace

std::size_t NameHash::operator()(std::string_view text) const {
  return XXH3_64bits(text.data(), text.size());
}

Limit::Limit(const config::LimitConfig& config, stats::Registry& registry, const store::KeyHasher& hasher,
             KeyBudget* budget)
    : name_(config.name),
      label_(name_),
      key_seed_(key_seed(hasher, 'n', name_)),
      lease_(config.lease),
      split_(config.split),
      base_(make_rule(config.definition, registry, hasher)),
      is_host_wide_(config.is_host_wide),
      may_refund_(config.may_refund),
      on_failure_(config.on_failure),
      local_share_(config.local_share),
      deadline_(config.deadline),
      overflows_(&registry.decisions_of(config.name, "overflow")) {
  const limiter::DefinitionPtr& shared = config.overflow ? config.overflow : config.definition;
  overflow_ = {budget, shared, store::make_limit_tag('o', name_, shared->state_kind())};
  overflow_->hash = hash_of("").salted(hasher.seed(overflow_->tag));
  for (const std::string_view state : {limiter::Definition::kBucketState, limiter::Definition::kTiersState}) {
    const std::string tag = store::make_limit_tag('n', name_, state);
    note_kept_as(tag, hasher.seed(tag), config.definition);
  }
  for (const config::Override& override : config.overrides) add_override(override, registry, hasher);
  for (const config::Plan& plan : config.plans)
    plans_.emplace(plan.name, make_rule(plan.definition, registry, hasher));
  has_one_rule_ = overrides() + plans() == 0;
}

Limit::Limit(std::string name, limiter::DefinitionPtr definition, limiter::Micros deadline,
             stats::Registry& registry, const store::KeyHasher& hasher)
    : name_(std::move(name)),
      label_(name_),
      key_seed_(key_seed(hasher, 'i', name_)),
      deadline_(deadline),
      overflows_(&registry.decisions_of(kInline, "overflow")) {
  base_.tag = store::make_limit_tag('i', name_, definition->state_kind());
  base_.salt = hasher.seed(base_.tag);
  base_.decisions.assign(definition->tiers().size(), &registry.decisions_of(kInline, ""));
  base_.definition = std::move(definition);
}

Rule Limit::make_rule(limiter::DefinitionPtr definition, stats::Registry& registry,
                      const store::KeyHasher& hasher) {
  Rule rule;
  rule.tag = store::make_limit_tag('n', name_, definition->state_kind());
  rule.salt = hasher.seed(rule.tag);
  note_kept_as(rule.tag, rule.salt, definition);
  for (const limiter::Tier& tier : definition->tiers())
    rule.decisions.push_back(&registry.decisions_of(name_, tier.name));
  rule.lease = lease_.permits(*definition);
  const auto parts = config::parts_of(*definition, split_);
  for (const limiter::DefinitionPtr& part : *parts) {
    const std::string state = "s" + std::to_string(rule.parts.size()) + ".";
    rule.parts.push_back({part, store::make_limit_tag('n', name_, state)});
  }
  for (KeptAs& kept : kept_as_) {
    if (kept.tag == rule.tag && kept.parts.empty()) kept.parts = rule.parts;
  }
  rule.definition = std::move(definition);
  return rule;
}

void Limit::note_kept_as(std::string tag, std::uint64_t salt, const limiter::DefinitionPtr& definition) {
  // Most have the limit's own tiers, with other numbers.
  const bool is_known = std::any_of(kept_as_.begin(), kept_as_.end(), [&](const KeptAs& known) {
    const auto &ours = known.definition->tiers(), &theirs = definition->tiers();
    return known.tag == tag &&
           std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                      [](const auto& a, const auto& b) { return a.identity() == b.identity(); });
  });
  if (!is_known) kept_as_.push_back({std::move(tag), salt, definition, {}});
}

void Limit::add_override(const config::Override& override, stats::Registry& registry,
                         const store::KeyHasher& hasher) {
  Rule rule;
  if (override.kind == config::Override::Kind::definition) {
    rule = make_rule(override.definition, registry, hasher);
  } else {
    rule.kind = override.kind;
    rule.decisions.push_back(&registry.decisions_of(name_, ""));
  }
  if (override.is_prefix) {
    prefixes_.emplace_back(override.key, std::move(rule));
  } else {
    exact_.emplace(override.key, std::move(rule));
  }
}

const Rule& Limit::find_rule(std::string_view key, std::string_view plan) const {
  if (!exact_.empty()) {
    if (const auto found = exact_.find(key); found != exact_.end()) return found->second;
  }
  for (const auto& [prefix, rule] : prefixes_) {
    if (key.substr(0, prefix.size()) == prefix) return rule;
  }
  if (!plan.empty()) {
    if (const auto found = plans_.find(plan); found != plans_.end()) return found->second;
  }
  return base_;
}

LimitTable::LimitTable(const config::Config& config, stats::Registry& registry,
                       const store::HashSecret& secret)
    : registry_(registry), hasher_(secret) {
  load(config);
}

void LimitTable::load(const config::Config& config) {
  default_deadline_ = config.agent.deadline;
  shadow_ = config.agent.shadow;
  last_found_ = nullptr;
  configured_.clear();
  by_name_.clear();
  inline_.clear();  // they carry the agent's deadline and shadow
  inline_order_.clear();
  for (const config::LimitConfig& limit : config.limits) {
    KeyBudget* budget = nullptr;
    if (limit.max_new_keys_per_second != 0) {
      Budget& own = budgets_.try_emplace(limit.name, limit.name).first->second;
      own.most = limit.max_new_keys_per_second;
      own.is_shared = !limit.is_host_wide;
      set_rate(own);
      budget = &own.keys;
    }
    configured_.push_back(std::make_shared<const Limit>(limit, registry_, hasher_, budget));
    by_name_.emplace(limit.name, configured_.back());
  }
}

void LimitTable::share_between(std::uint32_t agents) {
  if (agents == agents_) return;
  agents_ = agents;
  for (auto& [name, budget] : budgets_) set_rate(budget);
}

void LimitTable::set_rate(Budget& budget) const {
  budget.keys.set_rate(budget.is_shared ? std::max<std::int64_t>(1, budget.most / agents_) : budget.most);
}

std::uint64_t LimitTable::new_keys_refused() const {
  std::uint64_t refused = 0;
  for (const auto& [name, budget] : budgets_) refused += budget.keys.refused();
  return refused;
}

const LimitPtr* LimitTable::find_by_name(std::string_view name) const {
  auto found = by_name_.find(name);
  if (found == by_name_.end()) found = by_name_.find(kDefault);
  if (found == by_name_.end()) return nullptr;
  last_name_ = found->second->name();
  return last_found_ = &found->second;
}

Result<LimitPtr> LimitTable::find_or_parse(const protocol::InlineLimit& definition) {
  if (const auto found = inline_.find(definition.encoded); found != inline_.end()) return found->second;
  std::array<config::InlineRate, protocol::InlineLimit::kMaxTiers> rates;
  for (std::size_t i = 0; i < definition.tier_count; ++i) {
    const protocol::InlineTier& tier = definition.tiers[i];
    rates[i] = {tier.name, tier.rate, tier.algorithm, tier.align, tier.burst};
  }
  auto rules =
      config::make_definition(definition.name, std::span(rates).first(definition.tier_count), shadow_);
  if (!rules) return std::move(rules.error());
  auto limit = std::make_shared<const Limit>(std::string(definition.name), std::move(*rules),
                                             default_deadline_, registry_, hasher_);
  if (inline_.size() >= kMaxInline) {
    inline_.erase(inline_order_.front());
    inline_order_.pop_front();
  }
  inline_.emplace(std::string(definition.encoded), limit);
  inline_order_.emplace_back(definition.encoded);
  return LimitPtr(std::move(limit));
}

}  // namespace allowd::decide
