// SPDX-License-Identifier: MIT
#include "agent/decide/local_shares.h"

#include <algorithm>
#include <bit>

#include "agent/limiter/arithmetic.h"
#include "agent/limiter/share.h"

namespace allowd::decide {
namespace {

using limiter::BucketState;
using limiter::DefinitionPtr;
using limiter::Operation;
using limiter::TierState;
using limiter::TimePoint;
using store::SteadyTime;

constexpr std::size_t kMostDefinitions = 1024;
constexpr int kSweptAtOnce = 4;

TimePoint at(SteadyTime now) { return TimePoint{now.time_since_epoch()}; }

const limiter::TokenBucket& bucket_of(const limiter::Definition& share, std::size_t tier) {
  return std::get<limiter::TokenBucket>(share.tiers()[tier].algorithm);
}

limiter::Wide units_of(const limiter::Definition& share, std::size_t tier, std::int64_t permits) {
  return limiter::Wide{permits} * bucket_of(share, tier).unit();
}

// In which a permit comes back to the limit that refills the quickest, within reason.
limiter::Micros between_debits(const limiter::Definition& definition) {
  constexpr limiter::Micros kLeast = std::chrono::milliseconds(20), kMost = std::chrono::seconds(1);
  limiter::Micros least = kMost;
  for (const limiter::Tier& tier : definition.tiers())
    least = std::min(least, tier.rate().period / tier.rate().count);
  return std::max(least, kLeast);
}

void advance(const limiter::TokenBucket& bucket, TierState& state, TimePoint now) {
  auto own = std::bit_cast<BucketState>(state);
  bucket.advance(own, now);
  state = std::bit_cast<TierState>(own);
}

}  // namespace

LocalShares::LocalShares(store::Store& store, std::size_t max_keys)
    : store_(store), max_keys_(std::min(max_keys, kMostKeys)) {}

DefinitionPtr LocalShares::share_for(const limiter::Definition& definition, std::int64_t agents) {
  const std::pair key(&definition, agents);
  if (const auto found = shares_.find(key); found != shares_.end()) return found->second.second;
  if (shares_.size() >= kMostDefinitions) shares_.clear();
  auto& made = shares_[key];
  made = {definition.shared_from_this(), limiter::share_of(definition, agents)};
  return made.second;
}

LocalShares::Entry LocalShares::begin(const store::Question& question, DefinitionPtr share,
                                      std::int64_t agents, SteadyTime now) {
  Entry entry;
  const store::KnownLeft left = store_.known_left(question, now);
  for (std::size_t i = 0; i < share->tiers().size(); ++i) {
    const limiter::TokenBucket& bucket = bucket_of(*share, i);
    // What is full is full for everybody, however few permits that are.
    const bool is_full = !left[i] || *left[i] >= question.definition->tiers()[i].capacity();
    const std::int64_t missing = is_full ? 0 : bucket.burst() - std::min(bucket.burst(), *left[i] / agents);
    entry.states.push_back(
        std::bit_cast<TierState>(BucketState{bucket.unit(), missing * bucket.unit(), at(now)}));
  }
  entry.known = entry.states;
  entry.share = std::move(share);
  return entry;
}

void LocalShares::adopt(Entry& entry, DefinitionPtr share, TimePoint now) {
  if (entry.share == share) return;
  std::vector<TierState> states(share->tiers().size()), known(share->tiers().size());
  for (std::size_t i = 0; i < share->tiers().size(); ++i) {
    for (std::size_t j = 0; j < entry.share->tiers().size(); ++j) {
      if (entry.share->tiers()[j].name != share->tiers()[i].name) continue;
      states[i] = entry.states[j];
      known[i] = entry.known[j];
    }
  }
  entry.states = std::move(states);
  entry.known = std::move(known);
  entry.share = std::move(share);
  advance(entry, now);
}

void LocalShares::advance(Entry& entry, TimePoint now) {
  for (std::size_t i = 0; i < entry.states.size(); ++i) {
    decide::advance(bucket_of(*entry.share, i), entry.states[i], now);
    decide::advance(bucket_of(*entry.share, i), entry.known[i], now);
  }
}

bool LocalShares::is_over(const Entry& entry, SteadyTime now) {
  if (entry.debit != 0) return false;
  const bool is_full = std::all_of(entry.states.begin(), entry.states.end(),
                                   [](const TierState& state) { return state.used == 0; });
  const bool was_held = entry.held_until != SteadyTime{} && now >= entry.held_until;
  return is_full || (was_held && owed(entry, {}).most == 0);
}

std::optional<store::Answer> LocalShares::decide(const store::Question& question, std::int64_t agents,
                                                 SteadyTime now) {
  DefinitionPtr share = share_for(*question.definition, agents);
  if (!share) return std::nullopt;
  sweep(now);
  ++decisions_total_;
  store::KeyHash hash = question.state_hash();
  auto found = entries_.find(hash);
  if (found != entries_.end()) {
    adopt(found->second, share, at(now));
    advance(found->second, at(now));
    // The store may have known more of others' use since.
    if (is_over(found->second, now)) {
      entries_.erase(found);
      found = entries_.end();
    }
  }
  const bool has_no_room = found == entries_.end() && entries_.size() >= max_keys_;
  if (has_no_room) {
    // No limit has a tag of that kind, and nobody but the config chooses tags.
    hash = store::hash_openly("!" + std::string(question.limit_tag), "");
    found = entries_.find(hash);
    if (found != entries_.end()) adopt(found->second, share, at(now));
  }
  Entry fresh;
  if (found == entries_.end()) {
    fresh = begin(question, share, agents, now);
    if (has_no_room) fresh.known = fresh.states = std::vector<TierState>(fresh.states.size());
  }
  Entry& entry = found != entries_.end() ? found->second : fresh;
  entry.held_until = {};
  const bool is_away = store_.next_probe_in(store_.shard_of(question), now) > limiter::Micros{1};
  entry.was_away = entry.was_away || is_away;
  const std::vector<TierState> before = entry.states;
  store::Answer answer{store::Answer::Status::decided, has_no_room,
                       share->apply(entry.states, question.operation, question.cost, at(now))};
  // Who has charged nothing needs no place: what was left can be looked up again.
  if (found == entries_.end() && entry.states != before) entries_.emplace(hash, std::move(fresh));
  return answer;
}

LocalShares::OpenDebit LocalShares::owed(const Entry& entry, const store::KeyHash& hash) {
  OpenDebit debit;
  debit.hash = hash;
  for (std::size_t i = 0; i < entry.states.size(); ++i) {
    const std::int64_t taken = std::max<std::int64_t>(0, entry.states[i].used - entry.known[i].used);
    debit.permits.push_back(limiter::ceil_div(taken, bucket_of(*entry.share, i).unit()));
    debit.most = std::max(debit.most, debit.permits.back());
  }
  return debit;
}

std::optional<LocalShares::Debit> LocalShares::begin_debit(const store::Question& question, SteadyTime now) {
  sweep(now);
  const store::KeyHash hash = question.state_hash();
  const auto found = entries_.find(hash);
  if (found == entries_.end() || found->second.debit != 0) return std::nullopt;
  Entry& entry = found->second;
  if (entry.is_in_debt && now < entry.next_debit_at) return std::nullopt;
  if (entry.held_until == SteadyTime{})
    entry.held_until = now + (entry.was_away ? kHold : limiter::Micros{0});
  advance(entry, at(now));
  OpenDebit debit = owed(entry, hash);
  entry.is_in_debt = entry.is_in_debt && debit.most > 0;
  if (debit.most == 0) return std::nullopt;
  debit.pause = between_debits(*question.definition);
  entry.debit = ++last_debit_;
  const Debit begun{entry.debit, debit.most};
  debits_.emplace(begun.number, std::move(debit));
  return begun;
}

void LocalShares::note_taken(std::uint64_t number, std::span<const store::Taken> by_tier) {
  const auto found = debits_.find(number);
  if (found != debits_.end()) found->second.taken.assign(by_tier.begin(), by_tier.end());
}

void LocalShares::end_debit(std::uint64_t number, Outcome outcome, SteadyTime now) {
  const auto ended = debits_.extract(number);
  if (ended.empty()) return;
  const OpenDebit& debit = ended.mapped();
  if (outcome == Outcome::charged) {
    ++debits_total_;
    std::int64_t most = debit.taken.empty() ? debit.most : 0;
    for (const store::Taken& taken : debit.taken) most = std::max(most, taken.units / taken.unit);
    debited_total_ += static_cast<std::uint64_t>(std::min(most, debit.most));
  }
  if (outcome == Outcome::unknown) ++debits_unknown_total_;
  const auto found = entries_.find(debit.hash);
  if (found == entries_.end() || found->second.debit != number) return;
  Entry& entry = found->second;
  entry.debit = 0;
  if (outcome == Outcome::unasked) return;
  advance(entry, at(now));
  const bool knows_taken = outcome == Outcome::charged && debit.taken.size() == entry.states.size();
  for (std::size_t i = 0; i < std::min(entry.states.size(), debit.permits.size()); ++i) {
    const limiter::Wide asked = units_of(*entry.share, i, debit.permits[i]);
    // Parts of a permit that the store counts by another unit are rounded down: that much stays owed.
    const limiter::Wide taken =
        knows_taken ? units_of(*entry.share, i, debit.taken[i].units) / debit.taken[i].unit : asked;
    note_known(entry, i, std::min(asked, taken));
  }
  entry.is_in_debt = knows_taken && owed(entry, debit.hash).most > 0;
  if (!entry.is_in_debt) return;
  ++debits_short_total_;
  entry.next_debit_at = now + debit.pause;
}

void LocalShares::note_known(Entry& entry, std::size_t tier, limiter::Wide units) {
  const TierState& state = entry.states[tier];
  TierState& known = entry.known[tier];
  if (units < state.used - known.used) {
    known.used += static_cast<std::int64_t>(units);
  } else if (known.used < state.used) {
    known = state;
  }
}

limiter::Decision LocalShares::refuse(const Entry& entry, const store::Question& question, SteadyTime now) {
  std::vector<TierState> states = entry.states;
  for (std::size_t i = 0; i < states.size(); ++i) states[i].used = bucket_of(*entry.share, i).full();
  limiter::Decision decision = entry.share->apply(states, question.operation, question.cost, at(now));
  decision.verdict = limiter::Verdict::limited;
  decision.retry_after = std::max(entry.next_debit_at - now, limiter::Micros{1000});
  return decision;
}

std::optional<store::Answer> LocalShares::hold(const store::Question& question, SteadyTime now) {
  if (!is_held(question, now) || question.definition->is_shadow() || question.cost == 0) return std::nullopt;
  if (question.operation != Operation::take && question.operation != Operation::peek) return std::nullopt;
  Entry& entry = entries_.find(question.state_hash())->second;
  if (entry.share->tiers().size() != question.definition->tiers().size()) return std::nullopt;  // a reload
  advance(entry, at(now));
  if (entry.is_in_debt && store_.next_probe_in(store_.shard_of(question), now) <= limiter::Micros{1}) {
    ++decisions_total_;
    return store::Answer{store::Answer::Status::decided, false, refuse(entry, question, now)};
  }
  if (now >= entry.held_until) return std::nullopt;
  store::Answer answer{store::Answer::Status::decided, false,
                       entry.share->apply(entry.states, question.operation, question.cost, at(now))};
  if (!limiter::is_allowed(answer.decision)) {
    ++decisions_total_;
    if (answer.decision.verdict == limiter::Verdict::never) {
      answer.decision.verdict = limiter::Verdict::limited;
      answer.decision.retry_after = entry.held_until - now;
    }
    return answer;
  }
  if (question.operation == Operation::take) {
    for (std::size_t i = 0; i < entry.states.size(); ++i)
      note_known(entry, i, units_of(*entry.share, i, question.cost));
  }
  return std::nullopt;
}

bool LocalShares::is_held(const store::Question& question, SteadyTime now) const {
  const auto found = entries_.find(question.state_hash());
  return found != entries_.end() && (now < found->second.held_until || found->second.is_in_debt);
}

bool LocalShares::take_as_paid(const store::Question& question, SteadyTime asked_at, bool in_part,
                               SteadyTime now) {
  const auto found = entries_.find(question.state_hash());
  if (found == entries_.end() || found->second.debit != 0) return false;
  Entry& entry = found->second;
  advance(entry, at(now));
  if (owed(entry, question.state_hash()).most < question.cost) return false;
  const auto units_back = [&](std::size_t tier) {
    const limiter::TokenBucket& bucket = bucket_of(*entry.share, tier);
    const limiter::Wide back = limiter::Wide{(now - asked_at) / bucket.tick()} * bucket.refill();
    // A small part of a permit is not worth the debit of a whole one.
    return 8 * back < bucket.unit() ? limiter::Wide{0} : back;
  };
  bool is_whole = true;
  for (std::size_t i = 0; i < entry.states.size(); ++i) is_whole = is_whole && units_back(i) == 0;
  if (!is_whole && !in_part) return false;
  for (std::size_t i = 0; i < entry.states.size(); ++i)
    note_known(entry, i,
               std::max<limiter::Wide>(0, units_of(*entry.share, i, question.cost) - units_back(i)));
  return is_whole;
}

void LocalShares::sweep(SteadyTime now) {
  auto next = entries_.lower_bound(next_swept_);
  for (int i = 0; i < kSweptAtOnce && next != entries_.end(); ++i) {
    Entry& entry = next->second;
    advance(entry, at(now));
    next = is_over(entry, now) ? entries_.erase(next) : std::next(next);
  }
  next_swept_ = next == entries_.end() ? store::KeyHash{} : next->first;
}

void LocalShares::collect(const LocalShares* shares, std::vector<stats::Metric>& metrics) {
  using Kind = stats::Metric::Kind;
  const auto add = [&](std::string_view name, Kind kind, std::string_view help, auto value) {
    metrics.push_back({"local_share_" + std::string(name), kind, std::string(help),
                       shares == nullptr ? 0.0 : static_cast<double>(value(*shares))});
  };
  add("keys", Kind::gauge, "Keys of which this host has counted a share for itself.",
      [](const LocalShares& own) { return own.entries_.size(); });
  add("decisions_total", Kind::counter, "Decisions by this host's share of a limit, for want of the store.",
      [](const LocalShares& own) { return own.decisions_total_; });
  add("debits_total", Kind::counter, "Keys of which the store was told afterwards what they had used.",
      [](const LocalShares& own) { return own.debits_total_; });
  add("debited_permits_total", Kind::counter, "Permits that it was told of.",
      [](const LocalShares& own) { return own.debited_total_; });
  add("debits_short_total", Kind::counter,
      "Times that the store had less left than it was told of: the rest stays owed.",
      [](const LocalShares& own) { return own.debits_short_total_; });
  add("debits_unknown_total", Kind::counter, "Keys of which nobody knows whether the store has heard it.",
      [](const LocalShares& own) { return own.debits_unknown_total_; });
}

}  // namespace allowd::decide
