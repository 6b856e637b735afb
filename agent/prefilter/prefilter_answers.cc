// SPDX-License-Identifier: MIT
//
// Prefilter, as far as the store's answers: what they teach, who gets them, and who waits on.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "agent/prefilter/passing.h"
#include "agent/prefilter/prefilter.h"
#include "agent/prefilter/taken.h"

namespace allowd::prefilter {

using limiter::Decision;
using limiter::Definition;
using limiter::Micros;
using limiter::Operation;
using store::Answer;
using Shape = limiter::Definition::Shape;

std::int64_t Prefilter::on_answer(std::uint64_t ticket, const store::SharedAnswer& answer, SteadyTime now) {
  if ((ticket & kGiveBack) != 0) return 0;
  if ((ticket & kTogether) != 0) {
    const std::size_t place = ticket & ~kTogether;
    const Together asked = together_[place];
    free_together_.push_back(place);
    const auto fate = sink_->on_answer(asked.ticket, answer, now);
    const bool is_nobodys = fate == store::AnswerSink::Fate::refused_meanwhile && answer.has_charged;
    return is_nobodys ? asked.cost : 0;
  }
  const auto index = static_cast<QueueIndex>(ticket >> 32);
  Queue& queue = queues_[index];
  const Row& row = queue.rows[static_cast<std::uint32_t>(ticket)];
  const std::int64_t nobodys =
      row.lease_part > 0 ? settle_lease(queue, row, answer, now) : settle(queue, row, answer, now);
  if (--queue.open_rows == 0) finish(index, now);
  return nobodys;
}

std::int64_t Prefilter::settle(Queue& queue, const Row& row, const store::SharedAnswer& answer,
                               SteadyTime now) {
  const Waiter& first = queue.asked[row.first];
  const Definition& definition = *first.definition;
  if (answer.status != Answer::Status::decided) {
    for (std::size_t i = 0; i < row.count; ++i) {
      Answer failed;
      failed.is_unasked = answer.is_unasked;
      if (tries_another_part(queue.asked[row.first + i], queue.key, failed, now)) continue;
      static_cast<void>(deliver(queue.asked[row.first + i], failed, now));
    }
    return 0;
  }
  // What the script did, once more: equal costs pass until one is refused, and then so are all.
  answers_.clear();
  answers_.push_back(answer);
  std::array<limiter::TierState, Definition::kMaxTiers> states = answer.states;
  const auto own = std::span(states).first(definition.tiers().size());
  const bool are_states_before = definition.shape() == Shape::tiers || (definition.shape() == Shape::bucket &&
                                                                        first.operation != Operation::refund);
  if (are_states_before) {
    answers_[0].decision = definition.apply(own, first.operation, first.cost, answer.at);
    while (first.operation == Operation::take && answers_.size() < row.count &&
           has_passed(definition, answers_.back().decision)) {
      answers_.push_back(answers_.back());
      answers_.back().decision = definition.apply(own, first.operation, first.cost, answer.at);
    }
  }
  learn(queue, definition, answers_.back().decision, own, answer.at, now);
  if (are_states_before && first.operation == Operation::force)
    sink_->on_taken(first.ticket, taken_between(definition, answer.states, own, answer.at));
  if (asks_to_pass(first.operation, first.cost)) {
    const bool is_refused = !has_passed(definition, answers_.back().decision);
    queue.was_granted = queue.was_granted || has_passed(definition, answers_.front().decision);
    const std::size_t passed = is_refused ? answers_.size() - 1 : row.count;
    queue.granted =
        std::min(queue.granted + static_cast<std::int64_t>(passed) * first.cost, limiter::kMaxUsed);
    if (is_refused && (queue.least_refused == 0 || first.cost < queue.least_refused))
      queue.least_refused = first.cost;
  }
  const auto has_charged = [&](const Decision& decision) {
    return asks_to_pass(first.operation, first.cost) && has_passed(definition, decision);
  };
  std::int64_t nobodys = 0;
  for (std::size_t i = 0; i < row.count; ++i) {
    // Delivering may let the next question be asked, but never answered: what we stand on stays.
    Answer own_answer = answers_[std::min(i, answers_.size() - 1)];
    if (tries_another_part(queue.asked[row.first + i], queue.key, own_answer, now)) continue;
    const auto fate = deliver(queue.asked[row.first + i], own_answer, now);
    if (fate == store::AnswerSink::Fate::refused_meanwhile && has_charged(own_answer.decision))
      nobodys += first.cost;
  }
  // What will be given back raises the level beyond what is known.
  if (nobodys > 0) {
    if (KnownKey* key = keys_.find(queue.hash)) key->level.kind = Level::Kind::unknown;
  }
  return nobodys;
}

void Prefilter::learn(const Queue& queue, const Definition& definition, const Decision& decision,
                      std::span<const limiter::TierState> states, limiter::TimePoint at, SteadyTime now) {
  KnownKey* key = keys_.find(queue.hash);
  const auto& time = time_of(queue.shard, now);
  if (key == nullptr || !time || queue.epoch != time->epoch) return;
  // What was asked before and comes after is old news.
  if (key->epoch == queue.epoch && at < key->level.at) return;
  if (key->definition != definition.digest()) key->vain_questions = 0;
  keys_.set_level(*key, prefilter::learn(definition, decision, states, at), states);
  key->definition = definition.digest();
  key->epoch = queue.epoch;
  key->held_us = 0;
}

store::AnswerSink::Fate Prefilter::deliver(const Waiter& waiter, const Answer& answer, SteadyTime now) {
  --waiting_;
  if (!waiter.by_overflow) return sink_->on_answer(waiter.ticket, answer, now);
  Answer shared = answer;
  shared.by_overflow = true;
  return sink_->on_answer(waiter.ticket, shared, now);
}

void Prefilter::note_vain_or_granted(const Queue& queue, KnownKey& key) const {
  if (queue.was_granted) {
    key.vain_questions = 0;
    key.held_us = 0;
    return;
  }
  if (!queue.bound_said_yes || queue.least_refused == 0) return;
  if (key.level.kind == Level::Kind::unknown || key.epoch != queue.epoch) return;
  constexpr std::uint8_t kMostDoublings = 32;
  const Definition* definition = queue.asked.front().definition;
  Micros held = refill_interval(definition->tiers()[key.level.tier]);
  for (std::uint8_t i = 0; i < key.vain_questions && held < hold_; ++i) held *= 2;
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (queue.least_refused > kMost) return;
  key.vain_questions = static_cast<std::uint8_t>(std::min<int>(key.vain_questions + 1, kMostDoublings));
  key.held_us = static_cast<std::uint32_t>(std::min<std::int64_t>(std::min(held, hold_).count(), kMost));
  key.held_cost = static_cast<std::uint32_t>(queue.least_refused);
}

void Prefilter::finish(QueueIndex index, SteadyTime now) {
  Queue& queue = queues_[index];
  KnownKey* key = keys_.find(queue.hash);
  if (key != nullptr && key->queue == index && !queue.asked.empty()) {
    note_vain_or_granted(queue, *key);
    begin_lease(index, *key);
  }
  queue.asked.clear();
  queue.rows.clear();
  queue.bound_said_yes = queue.was_granted = false;
  queue.least_refused = queue.granted = 0;
  if (queue.wants_lease) list(index);
  filter_waiting(index, now);
  if (!queue.waiting.empty() || queue.is_listed) return;
  if (!queue.is_detached && key != nullptr) key->queue = KnownKey::kNoQueue;
  free_queue(index);
}

void Prefilter::filter_waiting(QueueIndex index, SteadyTime now) {
  Queue& queue = queues_[index];
  const KnownKey* key = keys_.find(queue.hash);
  auto waiters = std::exchange(queue.waiting, {});
  queue.waiting_cost = 0;
  queue.has_refund_waiting = false;
  for (const Waiter& waiter : waiters) {
    const bool has_left = !sink_->is_waiting(waiter.ticket);
    const bool may_be_refused = !has_left && key != nullptr && !queue.has_refund_waiting;
    Answer answer =
        may_be_refused ? refuse(*key, waiter.operation, *waiter.definition, waiter.cost, now) : Answer{};
    const bool is_refused = answer.status == Answer::Status::decided;
    if (is_refused && tries_another_part(waiter, queue.key, answer, now)) continue;
    if (has_left || is_refused) {
      static_cast<void>(deliver(waiter, answer, now));
    } else {
      push(index, waiter);
    }
  }
}

}  // namespace allowd::prefilter
