// SPDX-License-Identifier: MIT
#include "agent/store/memory/memory_store.h"

#include <algorithm>
#include <chrono>

namespace allowd::store {
namespace {

using limiter::Operation;
using Shape = limiter::Definition::Shape;

// A forgotten entry must not matter to a clock that is a little behind.
constexpr limiter::Micros kKeepFullKeysFor = std::chrono::minutes(1);
// Limits with an overflow bucket of their own; more of them, with inline names an application may invent any
// number, share one.
constexpr std::size_t kMaxOverflows = 4096;
constexpr std::size_t kSweepsPerPass = 120;
constexpr std::size_t kLogsPerSweep = 64;

}  // namespace

MemoryStore::MemoryStore(const Options& options)
    : epoch_offset_(options.epoch_offset), hasher_(options.secret), table_(options.max_keys) {}

Answer MemoryStore::decide(const Question& question, limiter::TimePoint now) {
  if (question.is_about_overflow) return decide_by_overflow(question, now);
  switch (question.definition->shape()) {
    case Shape::bucket:
    case Shape::counter: return decide_one(question, now);
    case Shape::tiers: return decide_tiers(question, now);
    case Shape::log: return decide_log(question, now);
  }
  return {};
}

// Answers are made where the caller wants them: each of these returns one variable, or what another returns.
Answer MemoryStore::decide_one(const Question& question, limiter::TimePoint now) {
  KeyEntry* entry = table_.find(question.hash);
  return entry != nullptr ? decide_known(question, *entry, now) : decide_new(question, now);
}

inline Answer MemoryStore::decide_known(const Question& question, KeyEntry& entry, limiter::TimePoint now) {
  const limiter::Definition& definition = *question.definition;
  const Answer answer{Answer::Status::decided, false,
                      definition.asks_exactly(entry.state, question.operation)
                          ? definition.ask_exactly(entry.state, question.operation, question.cost, now)
                          : definition.apply({&entry.state, 1}, question.operation, question.cost, now)};
  keep(entry, now, answer.decision);
  return answer;
}

Answer MemoryStore::decide_new(const Question& question, limiter::TimePoint now) {
  if (!table_.has_room(question.hash, now)) return decide_without_room(question, now);
  if (!is_admitted(question, now)) return decide_by_overflow(question, now);
  limiter::TierState state;
  const Answer answer{Answer::Status::decided, false,
                      question.definition->apply({&state, 1}, question.operation, question.cost, now)};
  // Only a charge makes a key known.
  if (state.exists()) *table_.insert(question.hash, now) = {state, leaves_at(state, now, answer.decision)};
  return answer;
}

limiter::TimePoint MemoryStore::leaves_at(const limiter::TierState& state, limiter::TimePoint now,
                                          const limiter::Decision& decision) {
  return std::max(state.at, now) + decision.reset_after + kKeepFullKeysFor;
}

void MemoryStore::keep(KeyEntry& entry, limiter::TimePoint now, const limiter::Decision& decision) {
  // A refusal may come from a limit that was lowered: its wait then outlasts what the last charge foresaw.
  if (decision.reset_after.count() == 0) return;
  entry.leaves_at = std::max(entry.leaves_at, leaves_at(entry.state, now, decision));
}

Answer MemoryStore::decide_tiers(const Question& question, limiter::TimePoint now) {
  const std::vector<limiter::Tier>& tiers = question.definition->tiers();
  std::array<KeyHash, limiter::Definition::kMaxTiers> hashes;
  std::array<limiter::TierState, limiter::Definition::kMaxTiers> states{};
  std::size_t unknown = 0;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    hashes[i] = hash_of(question.hash, tiers[i]);
    if (const KeyEntry* entry = table_.find(hashes[i])) {
      states[i] = entry->state;
    } else {
      ++unknown;
      if (!table_.has_room(hashes[i], now)) return decide_without_room(question, now);
    }
  }
  if (unknown > table_.room()) return decide_without_room(question, now);
  if (unknown == tiers.size() && !is_admitted(question, now)) return decide_by_overflow(question, now);
  const auto own = std::span(states).first(tiers.size());
  const Answer answer{Answer::Status::decided, false,
                      question.definition->apply(own, question.operation, question.cost, now)};
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    KeyEntry* entry = table_.find(hashes[i]);
    if (entry == nullptr && !states[i].exists()) continue;
    limiter::TierState seen = states[i];
    const auto level = tiers[i].apply(seen, Operation::peek, 0, now);
    if (entry == nullptr) {
      *table_.insert(hashes[i], now) = {states[i], leaves_at(states[i], now, level)};
    } else {
      entry->state = states[i];
      keep(*entry, now, level);
    }
  }
  return answer;
}

Answer MemoryStore::decide_log(const Question& question, limiter::TimePoint now) {
  const KeyHash& key_hash = question.hash;
  // As much as the log can ever hold: what has been admitted may grow without asking again.
  const auto most = static_cast<std::size_t>(question.definition->log().rate().count);
  const std::size_t places = 2 + most * sizeof(limiter::Stamp) / sizeof(std::pair<KeyHash, KeyEntry>);
  const auto found = logs_.find(key_hash);
  if (found == logs_.end()) {
    if (!has_room_for_log(places, now)) return decide_without_room(question, now);
    if (!is_admitted(question, now)) return decide_by_overflow(question, now);
  }
  limiter::LogState nothing;
  limiter::LogState& stamps = found == logs_.end() ? nothing : found->second.stamps;
  const Answer answer{Answer::Status::decided, false,
                      question.definition->apply(stamps, question.operation, question.cost, now)};
  if (found == logs_.end() && nothing.empty()) return answer;
  Log& log = found == logs_.end() ? logs_[key_hash] : found->second;
  if (found == logs_.end()) log.stamps = std::move(nothing);
  table_.take_places(std::max(places, log.places), log.places);
  log.places = std::max(places, log.places);
  log.leaves_at = std::max(log.leaves_at, now + answer.decision.reset_after + kKeepFullKeysFor);
  return answer;
}

bool MemoryStore::has_room_for_log(std::size_t places, limiter::TimePoint now) {
  if (table_.room() < places) sweep_logs(kLogsPerSweep, now);
  return table_.room() >= places;
}

Answer MemoryStore::decide_without_room(const Question& question, limiter::TimePoint now) {
  ++overflow_decisions_;
  return decide_by_overflow(question, now);
}

Answer MemoryStore::decide_by_overflow(const Question& question, limiter::TimePoint now) {
  const Overflow* own = question.overflow;
  const limiter::Definition& definition = own != nullptr ? *own->definition : *question.definition;
  const std::string tag = own != nullptr ? own->tag : std::string(question.limit_tag);
  // The shared state of one tier. Past the cap all limits share one: stricter, but bounded.
  const auto shared = [&](std::string name) -> SharedState& {
    if (overflow_.size() >= kMaxOverflows && !overflow_.contains(name)) name.clear();
    return overflow_[name];
  };
  if (definition.shape() == Shape::log) {
    SharedState& overflow = shared(tag);
    return {Answer::Status::decided, true,
            definition.apply(overflow.stamps, question.operation, question.cost, now)};
  }
  const std::vector<limiter::Tier>& tiers = definition.tiers();
  std::array<limiter::TierState, limiter::Definition::kMaxTiers> states;
  const auto name_of = [&](const limiter::Tier& tier) { return tag + tier.identity(); };
  for (std::size_t i = 0; i < tiers.size(); ++i) states[i] = shared(name_of(tiers[i])).state;
  const Answer answer{
      Answer::Status::decided, true,
      definition.apply(std::span(states).first(tiers.size()), question.operation, question.cost, now)};
  for (std::size_t i = 0; i < tiers.size(); ++i) shared(name_of(tiers[i])).state = states[i];
  return answer;
}

void MemoryStore::forget(const limiter::Definition& definition, const KeyHash& hash) {
  const auto log = logs_.find(hash);
  if (log != logs_.end()) {
    table_.take_places(0, log->second.places);
    logs_.erase(log);
  }
  table_.erase(hash);
  for (const limiter::Tier& tier : definition.tiers()) table_.erase(hash_of(hash, tier));
}

void MemoryStore::sweep_logs(std::size_t count, limiter::TimePoint now) {
  auto log = logs_.lower_bound(next_swept_log_);
  for (; count > 0 && log != logs_.end(); --count) {
    if (log->second.leaves_at > now) {
      ++log;
      continue;
    }
    table_.take_places(0, log->second.places);
    log = logs_.erase(log);
  }
  next_swept_log_ = log == logs_.end() ? KeyHash{} : log->first;
}

bool MemoryStore::sweep(SteadyTime now) {
  table_.sweep(table_.segments() / kSweepsPerPass + 1, at(now));
  sweep_logs(logs_.size() / kSweepsPerPass + 1, at(now));
  return !is_empty();
}

void MemoryStore::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  const auto number = [](std::size_t value) { return static_cast<double>(value); };
  metrics.push_back({"memory_keys", Kind::gauge,
                     "Places taken in the memory store: one a key, more for tiers and logs.",
                     number(table_.max_keys() - table_.room())});
  metrics.push_back(
      {"memory_keys_max", Kind::gauge, "Keys that the memory store may hold.", number(table_.max_keys())});
  metrics.push_back({"memory_longest_growth_step_entries", Kind::gauge,
                     "Most entries that one query's growth of the table had to move.",
                     number(table_.longest_growth_step())});
  metrics.push_back({"overflow_decisions_total", Kind::counter,
                     "Decisions by a limit's overflow bucket, because the key table was full.",
                     number(overflow_decisions_)});
}

}  // namespace allowd::store
