// SPDX-License-Identifier: MIT
//
// Prefilter, as far as permits are taken ahead.
#include "agent/prefilter/passing.h"
#include "agent/prefilter/prefilter.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace allowd::prefilter {

using limiter::Decision;
using limiter::Micros;
using limiter::Operation;
using limiter::Verdict;
using store::Answer;

namespace {

constexpr std::size_t kMostLeases = 1024;

}  // namespace

bool Prefilter::grant(KnownKey& key, const store::Question& question, const store::KeyHash& hash,
                      SteadyTime now, Answer& answer) {
  if (!asks_to_pass(question.operation, question.cost)) return false;
  Leased& leased = leases_[key.lease];
  const auto& time = time_of(key.shard, now);
  const bool is_of_before = time && time->epoch != leased.epoch;
  if (is_of_before || leased.definition->digest() != question.definition->digest()) {
    give_back(leased, leased.lease.drain(), now);
    drop_lease(key.lease);
    return false;
  }
  if (!leased.lease.take(question.cost, now)) return false;
  if (leased.lease.runs_low(now) && !leased.is_asked) {
    if (key.queue == KnownKey::kNoQueue)
      key.queue = take_queue(hash, question.limit_tag, question.key, key.shard);
    queues_[key.queue].wants_lease = true;
    list(key.queue);
  }
  // What is left is what the store has, by the bound, and what we have of it.
  const limiter::TokenBucket& bucket = question.definition->bucket();
  limiter::BucketState state{bucket.unit(), bucket.full(), {}};
  if (time && time->epoch == key.epoch && key.level.kind == Level::Kind::tier) {
    state = std::bit_cast<limiter::BucketState>(key.level.state);
    bucket.advance(state, time->now);
  }
  const std::int64_t ours = std::min(leased.lease.left(now), bucket.burst()) * bucket.unit();
  answer.status = Answer::Status::decided;
  answer.decision = bucket.describe(std::max<std::int64_t>(0, state.used - ours), question.cost, Verdict::ok);
  answer.is_local = true;
  ++leased_grants_total_;
  return true;
}

void Prefilter::begin_lease(QueueIndex index, KnownKey& key) {
  Queue& queue = queues_[index];
  const Waiter& first = queue.asked.front();
  if (first.lease == 0 || key.level.kind != Level::Kind::tier || key.epoch != queue.epoch) return;
  if (key.lease == KnownKey::kNoLease) {
    const std::int64_t demand = Lease::demand(queue.granted, key.level.at - queue.known_at);
    if (demand < Lease::kHot) return;
    if (free_leases_.empty()) {
      if (leases_.size() > kMostLeases) return;
      free_leases_.push_back(static_cast<std::uint32_t>(leases_.size()));
      leases_.push_back(leases_.front());
    }
    key.lease = free_leases_.back();
    free_leases_.pop_back();
    leases_[key.lease] = Leased{Lease(demand),
                                queue.hash,
                                queue.limit_tag,
                                queue.key,
                                queue.shard,
                                queue.epoch,
                                first.definition->shared_from_this(),
                                first.lease};
  }
  queue.wants_lease = true;
}

std::int64_t Prefilter::settle_lease(Queue& queue, const Row& row, const store::SharedAnswer& answer,
                                     SteadyTime now) {
  KnownKey* key = keys_.find(queue.hash);
  const bool is_ours = key != nullptr && key->lease == row.first;
  Leased& leased = leases_[row.first];
  leased.is_asked = false;
  if (!is_ours) free_leases_.push_back(static_cast<std::uint32_t>(row.first));  // it ended meanwhile
  if (answer.status != Answer::Status::decided) {
    next_expiry_ = std::min(next_expiry_, now);  // one that never got anything ends
    return 0;
  }
  const limiter::DefinitionPtr definition = leased.definition;
  limiter::TierState state = answer.states.front();
  std::int64_t permits = 0;
  Decision last;
  for (std::size_t i = 0; i < row.count; ++i) {
    last = definition->apply({&state, 1}, Operation::take, row.lease_part, answer.at);
    if (last.verdict != Verdict::ok) break;
    permits += row.lease_part;
  }
  learn(queue, *definition, last, {&state, 1}, answer.at, now);
  if (!is_ours) return permits;
  // What was taken before the server may have changed cannot be told from this any more.
  if (std::exchange(leased.epoch, queue.epoch) != queue.epoch)
    lease_forfeited_total_ += static_cast<std::uint64_t>(leased.lease.drain());
  leased_total_ += static_cast<std::uint64_t>(permits);
  leased.lease.add(permits, now);
  next_expiry_ = std::min(next_expiry_, leased.lease.next_expiry());
  return 0;
}

void Prefilter::give_back(const Leased& leased, std::int64_t permits, SteadyTime now) {
  if (permits == 0) return;
  const auto time = store_.time_of(leased.shard, now);  // of this moment: it may have changed within the turn
  const bool is_reached = time && time->epoch == leased.epoch;
  (is_reached ? lease_given_back_total_ : lease_forfeited_total_) += static_cast<std::uint64_t>(permits);
  if (!is_reached) return;
  static_cast<void>(store_.ask({.operation = Operation::refund,
                                .definition = leased.definition.get(),
                                .limit_tag = leased.limit_tag,
                                .key = leased.key,
                                .cost = permits,
                                .ticket = kGiveBack,
                                .shard = leased.shard}));
  if (KnownKey* key = keys_.find(leased.hash)) key->level.kind = Level::Kind::unknown;
}

void Prefilter::drop_lease(std::uint32_t index) {
  const Leased& leased = leases_[index];
  if (KnownKey* key = keys_.find(leased.hash)) key->lease = KnownKey::kNoLease;
  // A question for more may be under way: its row keeps the definition until it is answered.
  if (!leased.is_asked) free_leases_.push_back(index);
}

void Prefilter::expire_leases(SteadyTime now) {
  next_expiry_ = SteadyTime::max();
  for (std::uint32_t i = 1; i < leases_.size(); ++i) {
    Leased& leased = leases_[i];
    const KnownKey* key = keys_.find(leased.hash);
    if (key == nullptr || key->lease != i) continue;
    give_back(leased, leased.lease.expire(now), now);
    if (leased.lease.is_over(now) && !leased.is_asked) {
      drop_lease(i);
    } else {
      next_expiry_ = std::min(next_expiry_, std::max(leased.lease.next_expiry(), now + Micros{1}));
    }
  }
}

void Prefilter::end_leases(SteadyTime now) {
  for (std::uint32_t i = 1; i < leases_.size(); ++i) {
    const KnownKey* key = keys_.find(leases_[i].hash);
    if (key == nullptr || key->lease != i) continue;
    give_back(leases_[i], leases_[i].lease.drain(), now);
    drop_lease(i);
  }
}

std::optional<SteadyTime> Prefilter::next_wake() const {
  if (next_expiry_ == SteadyTime::max()) return std::nullopt;
  return next_expiry_;
}

}  // namespace allowd::prefilter
