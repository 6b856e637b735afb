// SPDX-License-Identifier: MIT
#include "agent/prefilter/prefilter.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "agent/prefilter/passing.h"

namespace allowd::prefilter {

using limiter::Decision;
using limiter::Definition;
using limiter::Micros;
using limiter::Operation;
using limiter::Verdict;
using store::Answer;

Prefilter::Prefilter(store::SharedStore& store, const Options& options)
    : store_(store),
      trust_(options.trust),
      hold_(options.hold),
      max_waiting_(options.max_waiting),
      keys_(options.max_keys),
      times_(store.shards()),
      queues_(1),
      leases_(1, Leased{Lease(0), {}, {}, {}, 0, 0, nullptr, 0}) {
  store.attach(*this);
}

std::size_t Prefilter::shard_of(const store::Question& question) const {
  if (times_.size() == 1) return 0;
  if (!question.parts.empty()) return store_.shard_of(question.limit_tag, question.key, question.part());
  const KnownKey* key = keys_.find(question.hash);
  return key != nullptr ? key->shard : store_.shard_of(question.limit_tag, question.key);
}

Answer Prefilter::ask(const store::Question& question, SteadyTime now) {
  if (question.is_about_overflow) return ask_overflow(question, now);
  if (!question.parts.empty()) return ask_in_parts(question, now);
  KnownKey* key = keys_.find(question.hash);
  if (key == nullptr && !question.is_admitted(now)) return ask_overflow(question, now);
  return ask_about(question, key, question.hash, now);
}

Answer Prefilter::ask_overflow(const store::Question& question, SteadyTime now) {
  store::Question shared = question;
  shared.definition = question.overflow->definition.get();
  shared.limit_tag = question.overflow->tag;
  shared.key = {};
  shared.hash = question.overflow->hash;
  shared.overflow = nullptr;
  shared.parts = {};
  shared.lease = 0;  // a flood would take all there is ahead
  shared.is_about_overflow = true;
  Answer answer{Answer::Status::decided};
  if (asks_to_pass(shared.operation, shared.cost) && !shared.definition->can_hold(shared.cost)) {
    answer.decision =
        shared.definition->apply_to_nothing(shared.operation, shared.cost, limiter::TimePoint{});
    answer.is_local = true;
  } else {
    answer = ask_about(shared, keys_.find(shared.hash), shared.hash, now);
  }
  answer.by_overflow = true;
  return answer;
}

// Answers are made where the caller wants them: each of these returns one variable, or what another returns.
inline Answer Prefilter::ask_about(const store::Question& question, KnownKey* key, const store::KeyHash& hash,
                                   SteadyTime now) {
  const bool has_lease = key != nullptr && key->lease != KnownKey::kNoLease;
  return has_lease ? ask_lease(question, *key, hash, now) : ask_bound(question, key, hash, now);
}

inline Answer Prefilter::ask_bound(const store::Question& question, KnownKey* key, const store::KeyHash& hash,
                                   SteadyTime now) {
  const store::ShardTime* time =
      may_refuse(key) ? time_to_refuse(*key, question.operation, *question.definition, question.cost, now)
                      : nullptr;
  Answer answer = time != nullptr ? refuse_at(*time, *key, *question.definition, question.cost) : Answer{};
  if (answer.status != Answer::Status::decided) answer = enqueue(question, key, hash, now);
  return answer;
}

Answer Prefilter::ask_lease(const store::Question& question, KnownKey& key, const store::KeyHash& hash,
                            SteadyTime now) {
  Answer answer;
  if (!grant(key, question, hash, now, answer)) answer = ask_bound(question, &key, hash, now);
  return answer;
}

Answer Prefilter::refuse(const KnownKey& key, Operation operation, const Definition& definition,
                         std::int64_t cost, SteadyTime now) {
  const store::ShardTime* time = time_to_refuse(key, operation, definition, cost, now);
  return time != nullptr ? refuse_at(*time, key, definition, cost) : Answer{};
}

inline const store::ShardTime* Prefilter::time_to_refuse(const KnownKey& key, Operation operation,
                                                         const Definition& definition, std::int64_t cost,
                                                         SteadyTime now) const {
  if (!asks_to_pass(operation, cost) || key.definition != definition.digest()) return nullptr;
  const auto& time = time_of(key.shard, now);
  if (!time || time->epoch != key.epoch || time->now - key.level.at >= trust_) return nullptr;
  return &*time;
}

inline Answer Prefilter::refuse_at(const store::ShardTime& time, const KnownKey& key,
                                   const Definition& definition, std::int64_t cost) {
  Answer answer{
      Answer::Status::decided, false,
      is_of_bucket(definition, key.level)
          ? decide_by_bucket(definition, key.level, cost, time.now, time.uncertainty)
          : decide_by_level(definition, key.level, keys_.tiers_of(key), cost, time.now, time.uncertainty),
      true};
  if (key.held_us > 0) hold_back(key, definition, cost, time.now, answer.decision);
  if (answer.decision.verdict == Verdict::ok) {
    answer.status = Answer::Status::failed;
  } else {
    ++refusals_total_;
  }
  return answer;
}

void Prefilter::hold_back(const KnownKey& key, const Definition& definition, std::int64_t cost,
                          limiter::TimePoint now, Decision& decision) {
  // Our clock may have stepped back behind level.at.
  const Micros held = key.level.at + Micros{key.held_us} - std::max(now, key.level.at);
  if (held.count() <= 0 || cost < key.held_cost) return;
  if (decision.verdict == Verdict::ok) {
    // The bound alone would let it pass: what the level says, but for the verdict.
    const limiter::Tier& tier = definition.tiers()[key.level.tier];
    decision = Decision{.verdict = Verdict::limited,
                        .capacity = tier.capacity(),
                        .retry_after = held,
                        .reset_after = held,
                        .window = tier.window(),
                        .more_after = held,
                        .tier = key.level.tier};
    definition.judge(decision);
    ++held_total_;
  }
  decision.retry_after = std::max(decision.retry_after, held);
}

bool Prefilter::ask_together(std::span<const store::Question> questions) {
  // Keys that are new, or not to be admitted, are asked one by one.
  const bool are_known = std::all_of(questions.begin(), questions.end(), [&](const auto& question) {
    return !has_budget(question) || keys_.find(question.hash) != nullptr;
  });
  const bool are_whole = std::all_of(questions.begin(), questions.end(),
                                     [](const auto& question) { return question.parts.empty(); });
  if (!are_known || !are_whole) return false;
  std::vector<store::SharedQuestion> asked;
  for (const store::Question& question : questions) {
    if (free_together_.empty()) {
      free_together_.push_back(together_.size());
      together_.emplace_back();
    }
    const std::size_t place = free_together_.back();
    free_together_.pop_back();
    together_[place] = {question.ticket, question.cost};
    asked.push_back({.operation = question.operation,
                     .definition = question.definition,
                     .limit_tag = question.limit_tag,
                     .key = question.key,
                     .cost = question.cost,
                     .ticket = kTogether | place,
                     .shard = static_cast<std::uint32_t>(shard_of(question))});
  }
  if (store_.ask_together(asked)) return true;
  for (const store::SharedQuestion& question : asked) free_together_.push_back(question.ticket & ~kTogether);
  return false;
}

void Prefilter::forget(const store::KeyHash& hash) {
  KnownKey* key = keys_.find(hash);
  if (key == nullptr) return;
  if (key->lease != KnownKey::kNoLease) drop_lease(key->lease);  // forgotten with all else
  key->level.kind = Level::Kind::unknown;
  key->held_us = 0;
}

void Prefilter::reset(const store::Question& question, std::function<void(bool)> done) {
  struct Progress {
    std::size_t open;
    bool is_forgotten = true;
  };
  const auto progress = std::make_shared<Progress>(Progress{1 + question.parts.size()});
  const auto on_each = [progress, done = std::move(done)](bool is_forgotten) {
    progress->is_forgotten = progress->is_forgotten && is_forgotten;
    if (--progress->open == 0) done(progress->is_forgotten);
  };
  const auto reset_one = [&](std::uint32_t shard, std::string_view limit_tag, const store::KeyHash& hash) {
    // Once it is done: questions that were asked before may be answered until then.
    store_.reset(shard, limit_tag, question.key, [this, hash, on_each](bool is_forgotten) {
      forget(hash);
      on_each(is_forgotten);
    });
  };
  reset_one(store_.shard_of(question.limit_tag, question.key), question.limit_tag, question.hash);
  for (std::size_t i = 0; i < question.parts.size(); ++i) {
    reset_one(store_.shard_of(question.limit_tag, question.key, i), question.parts[i].limit_tag,
              hash_in_part(question.hash, i));
  }
}

void Prefilter::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  const auto add = [&](std::string_view name, Kind kind, std::string_view help, std::uint64_t value) {
    metrics.push_back(
        {"prefilter_" + std::string(name), kind, std::string(help), static_cast<double>(value)});
  };
  add("refusals_total", Kind::counter, "Queries refused on this host, from what the store said before.",
      refusals_total_);
  add("held_total", Kind::counter, "Of these, queries about keys that others drain, held back for a moment.",
      held_total_);
  add("crowded_out_total", Kind::counter,
      "Queries refused since those that waited before them take all there can be.", crowded_out_total_);
  add("leases", Kind::gauge, "Keys of which permits have been taken ahead.",
      leases_.size() - 1 - free_leases_.size());
  add("leased_grants_total", Kind::counter, "Queries granted out of permits taken ahead.",
      leased_grants_total_);
  add("leased_total", Kind::counter, "Permits taken ahead.", leased_total_);
  add("leased_given_back_total", Kind::counter, "Of these, permits given back unused.",
      lease_given_back_total_);
  add("leased_forfeited_total", Kind::counter,
      "Of these, permits that could not be given back: their server was out of reach, or had maybe changed.",
      lease_forfeited_total_);
  add("questions_total", Kind::counter, "Questions put to the store, each about one key.", questions_total_);
  add("queries_asked_total", Kind::counter, "Queries that went into these questions.", queries_asked_total_);
  add("queries_waiting", Kind::gauge, "Queries that wait for a question's answer.", waiting_);
  add("queries_turned_away_total", Kind::counter, "Queries that on_failure answered because too many waited.",
      turned_away_total_);
  add("keys", Kind::gauge, "Keys of which something is known.", keys_.size());
  add("keys_max", Kind::gauge, "Keys of which something can be known.", keys_.capacity());
  add("keys_dropped_total", Kind::counter, "Keys whose place others took.", keys_.dropped());
}

}  // namespace allowd::prefilter
