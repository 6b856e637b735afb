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

bool has_budget(const store::Question& question) {
  return question.overflow != nullptr && question.overflow->budget != nullptr;
}

}  // namespace

Prefilter::Prefilter(store::SharedStore& store, const Options& options)
    : store_(store),
      trust_(options.trust),
      hold_(options.hold),
      max_waiting_(options.max_waiting),
      keys_(options.max_keys),
      times_(store.shards()),
      queues_(1),
      leases_(1, Leased{Lease(0), {}, {}, {}, 0, nullptr, 0}) {
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
            : store_.shard_of(of_parts->limit_tag, question.key, part_at(*of_parts, of_parts->refused_parts));
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
    waiter.refused_parts = of_parts->refused_parts;
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
  if (key->lease != KnownKey::kNoLease) end_lease(key->lease, 0);  // forgotten with all else
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
