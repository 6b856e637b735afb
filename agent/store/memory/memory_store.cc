// SPDX-License-Identifier: MIT
#include "agent/store/memory/memory_store.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>

namespace allowd::store {
namespace {

using limiter::Operation;

// A forgotten entry must not matter to a clock that is a little behind.
constexpr limiter::Micros kKeepFullKeysFor = std::chrono::minutes(1);
// Limits with an overflow bucket of their own; more of them, with inline names an application may invent any
// number, share one.
constexpr std::size_t kMaxOverflowLimits = 4096;
constexpr std::size_t kSweepsPerPass = 120;

}  // namespace

MemoryStore::MemoryStore(const Options& options)
    : epoch_offset_(options.epoch_offset), secret_{}, table_(options.max_keys) {
  XXH3_generateSecret(secret_.data(), secret_.size(), options.secret.data(), sizeof options.secret);
}

KeyHash MemoryStore::hash(std::string_view limit_tag, std::string_view key) const {
  // The tag's hash seeds the key's, so that equal keys of two limits are apart. Both are under the secret:
  // names that applications choose cannot be made to collide either.
  const auto seed =
      XXH3_64bits_withSecret(limit_tag.data(), limit_tag.size(), secret_.data(), secret_.size());
  const auto digest = XXH3_128bits_withSeed(key.data(), key.size(), seed);
  return {digest.low64, digest.high64};
}

Answer MemoryStore::decide(const Question& question, limiter::TimePoint now) {
  const KeyHash key_hash = hash(question.limit_tag, question.key);
  KeyEntry* entry = table_.find(key_hash);
  if (entry == nullptr) {
    if (!table_.has_room(key_hash, now)) return decide_by_overflow(question, now);
    limiter::BucketState state;
    const Answer answer{Answer::Status::decided, false,
                        question.bucket->apply(state, question.operation, question.cost, now)};
    // Only a charge makes a key known.
    if (state.exists()) {
      *table_.insert(key_hash, now) = {state, state.last + answer.decision.reset_after + kKeepFullKeysFor};
    }
    return answer;
  }
  const Answer answer{Answer::Status::decided, false,
                      question.bucket->apply(entry->state, question.operation, question.cost, now)};
  // A refusal may come from a limit that was lowered: its wait then outlasts what the last charge foresaw.
  if (answer.decision.reset_after.count() > 0) {
    const auto is_full_at = std::max(entry->state.last, now) + answer.decision.reset_after;
    entry->leaves_at = std::max(entry->leaves_at, is_full_at + kKeepFullKeysFor);
  }
  return answer;
}

Answer MemoryStore::decide_by_overflow(const Question& question, limiter::TimePoint now) {
  ++overflow_decisions_;
  auto found = overflow_.find(std::string(question.limit_tag));
  if (found == overflow_.end()) {
    const bool has_room = overflow_.size() < kMaxOverflowLimits;
    found = overflow_.try_emplace(has_room ? std::string(question.limit_tag) : std::string()).first;
  }
  return {Answer::Status::decided, true,
          question.bucket->apply(found.value(), question.operation, question.cost, now)};
}

bool MemoryStore::sweep(SteadyTime now) {
  table_.sweep(table_.segments() / kSweepsPerPass + 1, at(now));
  return table_.size() > 0;
}

void MemoryStore::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  const auto number = [](std::size_t value) { return static_cast<double>(value); };
  metrics.push_back({"memory_keys", Kind::gauge, "Keys in the memory store.", number(table_.size())});
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
