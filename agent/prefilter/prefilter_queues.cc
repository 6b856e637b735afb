// SPDX-License-Identifier: MIT
//
// Prefilter, as far as queries wait: of each key one question is open at a time, and the next one asks for
// all who have come meanwhile.
#include <algorithm>
#include <utility>

#include "agent/prefilter/passing.h"
#include "agent/prefilter/prefilter.h"

namespace allowd::prefilter {

using limiter::Definition;
using limiter::Micros;
using limiter::Operation;
using limiter::Verdict;
using store::Answer;
using Shape = limiter::Definition::Shape;

namespace {

// A ticket of ours names a queue and a row.
constexpr std::uint64_t make_ticket(std::uint32_t queue, std::size_t row) {
  return std::uint64_t{queue} << 32 | row;
}

// A row this long keeps a script of tiers under a millisecond; buckets are decided at once, however many.
constexpr std::size_t kLongestRowOfTiers = 64;
constexpr std::size_t kLongestRow = 65'536;
// So many of the youngest waiters are added up.
constexpr std::size_t kMostAddedUp = 64;
// A lease is asked for in so many parts: where not all is left, some of it is.
constexpr std::int64_t kLeaseParts = 16;
// A queue that was this busy gives its memory back.
constexpr std::size_t kKeptWaiters = 64;

std::size_t longest_row(const Definition& definition, Operation operation) {
  if (operation != Operation::take && operation != Operation::peek) return 1;
  if (definition.shape() == Shape::bucket) return kLongestRow;
  return definition.shape() == Shape::tiers ? kLongestRowOfTiers : 1;
}

}  // namespace

Prefilter::QueueIndex Prefilter::take_queue(const store::KeyHash& hash, std::string_view limit_tag,
                                            std::string_view key, std::uint32_t shard) {
  QueueIndex index;
  if (free_queues_.empty()) {
    index = static_cast<QueueIndex>(queues_.size());
    queues_.emplace_back();
  } else {
    index = free_queues_.back();
    free_queues_.pop_back();
  }
  Queue& queue = queues_[index];
  queue.hash = hash;
  queue.limit_tag = limit_tag;
  queue.key = key;
  queue.shard = shard;
  return index;
}

void Prefilter::free_queue(QueueIndex index) {
  Queue& queue = queues_[index];
  std::vector<Waiter> kept = std::move(queue.waiting);
  kept.clear();
  if (kept.capacity() > kKeptWaiters) kept = {};
  queue = Queue{};
  queue.waiting = std::move(kept);
  free_queues_.push_back(index);
}

bool Prefilter::is_crowded_out(const Queue& queue, const store::Question& question) const {
  const Definition& definition = *question.definition;
  if (!asks_to_pass(question.operation, question.cost) || definition.shape() != Shape::bucket) return false;
  const std::int64_t room = definition.bucket().burst() - question.cost;
  if (queue.has_refund_waiting || queue.waiting_cost <= room) return false;
  // They are decided before it, and if they are refused, so is what costs no less.
  std::int64_t ahead = 0;
  const std::size_t count = std::min(queue.waiting.size(), kMostAddedUp);
  for (std::size_t i = 1; i <= count && ahead <= room; ++i) {
    const Waiter& waiter = queue.waiting[queue.waiting.size() - i];
    const bool counts = waiter.operation == Operation::take && waiter.cost <= question.cost &&
                        waiter.deadline >= question.deadline && waiter.definition == &definition;
    if (counts) ahead += waiter.cost;
  }
  return ahead > room;
}

Answer Prefilter::enqueue(const store::Question& question, KnownKey* key, const store::KeyHash& hash,
                          SteadyTime now, const Waiter* of_parts) {
  if (waiting_ >= max_waiting_) {
    ++turned_away_total_;
    Answer refused;
    refused.is_unasked = true;
    return refused;
  }
  if (key == nullptr) {
    // Who only looks gets no place where places are counted: that would make room for a charge.
    const bool may_be_known = !has_budget(question) || question.makes_known();
    if (may_be_known) key = keys_.insert(hash);
    const std::uint32_t shard =
        of_parts == nullptr
            ? store_.shard_of(question.limit_tag, question.key)
            : store_.shard_of(of_parts->limit_tag, question.key, part_at(*of_parts, of_parts->parts_tried));
    if (key == nullptr) {
      // Or all that could make room have queues: asked without being known.
      const QueueIndex index = take_queue(hash, question.limit_tag, question.key, shard);
      queues_[index].is_detached = true;
      return wait_in(index, question, of_parts);
    }
    key->shard = static_cast<std::uint8_t>(shard);
  }
  if (key->queue == KnownKey::kNoQueue) {
    key->queue = take_queue(hash, question.limit_tag, question.key, key->shard);
  } else if (queues_[key->queue].open_rows > 0) {
    const auto& time = time_of(key->shard, now);
    if (!time || time->epoch != queues_[key->queue].epoch || !time->is_answering) {
      // The connection over which it was asked is gone, or all but gone: begin anew beside it. So too where
      // the shard does not answer: the store will say at once what becomes of the question.
      const QueueIndex old = key->queue;
      key->queue = take_queue(hash, question.limit_tag, question.key, key->shard);
      queues_[old].is_detached = true;
      for (const Waiter& waiter : std::exchange(queues_[old].waiting, {})) push(key->queue, waiter);
    }
  }
  const Queue& queue = queues_[key->queue];
  if (is_crowded_out(queue, question)) {
    // The least that may be short: those ahead can be refused by a part of a permit.
    const limiter::TokenBucket& bucket = question.definition->bucket();
    const std::int64_t used = bucket.full() - question.cost * bucket.unit() + 1;
    Answer answer{Answer::Status::decided, false, bucket.describe(used, question.cost, Verdict::limited),
                  true};
    question.definition->judge(answer.decision);
    ++crowded_out_total_;
    return answer;
  }
  return wait_in(key->queue, question, of_parts);
}

Answer Prefilter::wait_in(QueueIndex index, const store::Question& question, const Waiter* of_parts) {
  ++waiting_;
  Waiter waiter{question.ticket,     question.cost,      question.deadline,
                question.definition, question.operation, question.lease};
  waiter.by_overflow = question.is_about_overflow;
  if (of_parts != nullptr) {
    waiter.parts = of_parts->parts;
    waiter.limit_tag = of_parts->limit_tag;
    waiter.hash = of_parts->hash;
    waiter.parts_tried = of_parts->parts_tried;
    waiter.has_silent_part = of_parts->has_silent_part;
  }
  push(index, waiter);
  return {Answer::Status::promised, false, {}};
}

void Prefilter::push(QueueIndex index, const Waiter& waiter) {
  Queue& queue = queues_[index];
  queue.waiting.push_back(waiter);
  if (waiter.operation == Operation::take)
    queue.waiting_cost =
        std::min(queue.waiting_cost + std::min(waiter.cost, limiter::kMaxUsed), limiter::kMaxUsed);
  if (waiter.operation == Operation::refund) queue.has_refund_waiting = true;
  list(index);
}

void Prefilter::list(QueueIndex index) {
  Queue& queue = queues_[index];
  if (queue.open_rows > 0 || std::exchange(queue.is_listed, true)) return;
  to_ask_.push_back(index);
}

void Prefilter::flush(SteadyTime now) {
  if (now >= next_expiry_) expire_leases(now);
  // Whoever is answered meanwhile may ask again.
  for (std::size_t i = 0; i < to_ask_.size(); ++i) ask_store(to_ask_[i], now);
  to_ask_.clear();
}

bool Prefilter::bound_says_yes(const Queue& queue, SteadyTime now) {
  const KnownKey* key = keys_.find(queue.hash);
  const auto& time = time_of(queue.shard, now);
  if (key == nullptr || !time || key->epoch != time->epoch || key->level.kind == Level::Kind::unknown)
    return false;
  if (time->now - key->level.at >= trust_) return false;
  // With certain clocks: what only their error lets through says nothing about others.
  return std::all_of(queue.asked.begin(), queue.asked.end(), [&](const Waiter& waiter) {
    return key->definition == waiter.definition->digest() &&
           !prefilter::refuse(*waiter.definition, key->level, keys_.tiers_of(*key), waiter.cost, time->now,
                              Micros{0});
  });
}

void Prefilter::ask_store(QueueIndex index, SteadyTime now) {
  Queue& queue = queues_[index];
  queue.is_listed = false;
  for (const Waiter& waiter : std::exchange(queue.waiting, {})) {
    if (sink_->is_waiting(waiter.ticket)) {
      queue.asked.push_back(waiter);
    } else {
      static_cast<void>(deliver(waiter, Answer{}, now));
    }
  }
  queue.waiting_cost = 0;
  queue.has_refund_waiting = false;
  if (queue.asked.empty() && !queue.wants_lease) return finish(index, now);
  const auto& time = time_of(queue.shard, now);
  queue.epoch = time ? time->epoch : 0;
  queue.bound_said_yes = bound_says_yes(queue, now);
  add_rows(queue, now);
  queue.open_rows = queue.rows.size();
  if (queue.rows.empty()) return finish(index, now);
  ++questions_total_;
  queries_asked_total_ += queue.asked.size();
  for (std::size_t i = 0; i < queue.rows.size(); ++i) {
    const Row& row = queue.rows[i];
    const bool is_lease = row.lease_part > 0;
    const Waiter* first = is_lease ? nullptr : &queue.asked[row.first];
    const bool is_promised =
        store_.ask({.operation = is_lease ? Operation::take : first->operation,
                    .definition = is_lease ? leases_[row.first].definition.get() : first->definition,
                    .limit_tag = queue.limit_tag,
                    .key = queue.key,
                    .cost = is_lease ? row.lease_part : first->cost,
                    .times = static_cast<std::uint32_t>(row.count),
                    .ticket = make_ticket(index, i),
                    .shard = queue.shard});
    if (is_promised) continue;
    store::SharedAnswer refused;
    refused.is_unasked = true;
    static_cast<void>(on_answer(make_ticket(index, i), refused, now));
  }
}

void Prefilter::add_rows(Queue& queue, SteadyTime now) {
  for (std::size_t i = 0; i < queue.asked.size(); ++i) {
    const Waiter& waiter = queue.asked[i];
    const auto is_next_of = [&](const Row& row) {
      const Waiter& first = queue.asked[row.first];
      return first.definition == waiter.definition && first.operation == waiter.operation &&
             first.cost == waiter.cost && row.count < longest_row(*waiter.definition, waiter.operation);
    };
    if (!queue.rows.empty() && is_next_of(queue.rows.back())) {
      ++queue.rows.back().count;
    } else {
      queue.rows.push_back({i, 1});
    }
  }
  const KnownKey* key = keys_.find(queue.hash);
  queue.known_at = key != nullptr && key->epoch == queue.epoch ? key->level.at : limiter::TimePoint{};
  if (!std::exchange(queue.wants_lease, false) || key == nullptr || key->lease == KnownKey::kNoLease) return;
  Leased& leased = leases_[key->lease];
  const std::int64_t size = leased.lease.next_size(leased.most, now);
  if (size == 0 || leased.is_asked) return;
  leased.is_asked = true;
  const std::int64_t part = (size + kLeaseParts - 1) / kLeaseParts;
  queue.rows.push_back({key->lease, static_cast<std::size_t>(size / part), part});
}

bool Prefilter::is_waiting(std::uint64_t ticket) const {
  if ((ticket & kGiveBack) != 0) return true;
  if ((ticket & kTogether) != 0) return sink_->is_waiting(together_[ticket & ~kTogether].ticket);
  const Queue& queue = queues_[ticket >> 32];
  const Row& row = queue.rows[static_cast<std::uint32_t>(ticket)];
  if (row.lease_part > 0) return true;
  return std::any_of(queue.asked.begin() + static_cast<std::ptrdiff_t>(row.first),
                     queue.asked.begin() + static_cast<std::ptrdiff_t>(row.first + row.count),
                     [this](const Waiter& waiter) { return sink_->is_waiting(waiter.ticket); });
}

}  // namespace allowd::prefilter
