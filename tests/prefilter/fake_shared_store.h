// SPDX-License-Identifier: MIT
//
// A shared store in memory, in two halves: SharedKeys decides as Redis's scripts do, and many
// FakeSharedStores, one per host, stand before it. What a host asked is decided, and answered, when the test
// says so.
//
// Pure: times are arguments or members that a test sets.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/store/shared_store.h"

namespace allowd::testing {

// What is kept of one key under one tag.
struct SharedValue {
  std::map<std::string, limiter::TierState> parts;  // by the tier's identity
  limiter::LogState log;
  std::int64_t count = 0;  // of a counter, until `expires`
  std::chrono::milliseconds expires{0};

  bool operator==(const SharedValue&) const = default;
};

// A question as the wire carries it: it owns what it names.
struct SharedAsked {
  limiter::Operation operation = limiter::Operation::take;
  limiter::DefinitionPtr definition;
  std::string limit_tag;
  std::string key;
  std::int64_t cost = 1;
  std::uint32_t times = 1;
  std::uint64_t ticket = 0;
  std::uint32_t shard = 0;
};

// Whether the store charges what it answered so.
[[nodiscard]] inline bool passes(const limiter::Definition& definition, const limiter::Decision& decision) {
  const bool is_watched =
      decision.verdict == limiter::Verdict::shadow && definition.tiers()[decision.tier].shadow;
  return decision.verdict == limiter::Verdict::ok || is_watched;
}

// Decides one question. `now` is what the asker says, `own` the store's clock: counters go by that. Returns
// the answer and what it charged.
inline std::pair<store::SharedAnswer, std::int64_t> decide(SharedValue& value, const SharedAsked& asked,
                                                           limiter::TimePoint now, limiter::TimePoint own) {
  using limiter::Operation;
  using Shape = limiter::Definition::Shape;
  const limiter::Definition& rules = *asked.definition;
  store::SharedAnswer answer;
  answer.status = store::Answer::Status::decided;
  answer.at = now;
  std::int64_t charged = 0;
  const bool takes = asked.operation == Operation::take && asked.cost > 0;
  switch (rules.shape()) {
    case Shape::log:
      answer.decision = rules.apply(value.log, asked.operation, asked.cost, now);
      if (takes && passes(rules, answer.decision)) charged = asked.cost;
      break;
    case Shape::counter: {
      const auto window = std::chrono::ceil<std::chrono::milliseconds>(rules.counter().rate().period);
      const auto own_ms = std::chrono::floor<std::chrono::milliseconds>(own.time_since_epoch());
      if (own_ms > value.expires) value.count = 0;
      if (value.count == 0) value.expires = own_ms + window;
      if (takes || asked.operation == Operation::force) value.count += asked.cost;
      const auto left = std::clamp(value.expires - own_ms, std::chrono::milliseconds(1), window);
      answer.decision = rules.counter().describe(value.count, left, asked.operation, asked.cost);
      rules.judge(answer.decision);
      if (takes && passes(rules, answer.decision)) charged = asked.cost;
      break;
    }
    case Shape::bucket:
    case Shape::tiers: {
      std::array<limiter::TierState, limiter::Definition::kMaxTiers> states{};
      const auto own_states = std::span(states).first(rules.tiers().size());
      for (std::size_t i = 0; i < rules.tiers().size(); ++i) {
        const auto found = value.parts.find(rules.tiers()[i].identity());
        if (found != value.parts.end()) states[i] = found->second;
      }
      // Of a bucket the script sends what is used at `now`, and the part of a tick since; never a later time.
      const auto seen_bucket = [&] {
        limiter::BucketState seen{states[0].scale, states[0].used, states[0].at};
        rules.bucket().advance(seen, now);
        return limiter::TierState{seen.unit, seen.used, std::min(now, seen.last)};
      };
      const bool is_bucket = rules.shape() == Shape::bucket;
      const bool is_refund = asked.operation == Operation::refund;
      answer.states = states;
      if (is_bucket && !is_refund) answer.states[0] = seen_bucket();
      answer.decision = rules.apply(own_states, asked.operation, asked.cost, now);
      limiter::Decision last = answer.decision;
      for (std::uint32_t i = 0; takes && passes(rules, last); ++i) {
        charged += asked.cost;
        if (i + 1 == asked.times) break;
        last = rules.apply(own_states, asked.operation, asked.cost, now);
      }
      if (is_bucket && is_refund) answer.states[0] = seen_bucket();
      for (std::size_t i = 0; i < rules.tiers().size(); ++i) {
        if (states[i].exists()) value.parts[rules.tiers()[i].identity()] = states[i];
      }
      break;
    }
  }
  return {answer, charged};
}

class SharedKeys {
 public:
  [[nodiscard]] SharedValue& of(const std::string& limit_tag, const std::string& key) {
    return values_[limit_tag + key];
  }
  void forget(const std::string& limit_tag, const std::string& key) { values_.erase(limit_tag + key); }
  void lose_all() { values_.clear(); }

 private:
  std::map<std::string, SharedValue> values_;
};

class FakeSharedStore final : public store::SharedStore {
 public:
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};

  // What travels as one: a question, several asked together, or a reset.
  struct Call {
    std::vector<SharedAsked> questions;
    bool is_together = false;
    std::function<void(bool)> on_reset;  // of a reset
    store::SteadyTime asked{};
    limiter::TimePoint at{};  // what the host thought that was on the shard's clock
    std::optional<std::vector<store::SharedAnswer>> answers;
    std::int64_t charged = 0;
    store::SteadyTime arrives{}, returns{};  // for a test that has a network
  };

  FakeSharedStore(SharedKeys& keys, std::uint32_t shards) : keys_(keys), shards_(shards) {}

  // Knobs.
  store::SteadyTime now{};         // the loop's
  limiter::Micros offset{0};       // from it to this host's idea of the shard's time
  limiter::Micros uncertainty{0};  // of that idea
  std::uint32_t epoch = 1;
  bool is_up = true;
  std::optional<std::uint32_t> lost_shard;  // that one is not
  bool is_answering = true;
  bool can_ask_together = true;
  std::size_t room = ~std::size_t{0};  // questions that it takes before it says no

  std::deque<Call> calls;  // on their way, oldest first

  [[nodiscard]] limiter::TimePoint shard_now() const {
    return limiter::TimePoint{now.time_since_epoch() + offset};
  }
  // The store decides a call, `own` being its clock. Returns what each question charged.
  std::vector<std::int64_t> arrive(Call& call, limiter::TimePoint own) {
    std::vector<std::int64_t> charges;
    call.answers.emplace();
    if (call.on_reset) {
      keys_.forget(call.questions[0].limit_tag, call.questions[0].key);
      return charges;
    }
    const bool may_charge =
        !call.is_together ||
        std::all_of(call.questions.begin(), call.questions.end(), [&](const SharedAsked& asked) {
          SharedValue copy = keys_.of(asked.limit_tag, asked.key);
          return passes(*asked.definition, decide(copy, asked, call.at, own).first.decision);
        });
    for (const SharedAsked& asked : call.questions) {
      SharedAsked question = asked;
      if (!may_charge) question.operation = limiter::Operation::peek;
      auto [answer, charged] = decide(keys_.of(asked.limit_tag, asked.key), question, call.at, own);
      answer.has_charged = call.is_together && charged > 0;
      call.answers->push_back(answer);
      call.charged += charged;
      charges.push_back(charged);
    }
    return charges;
  }
  // The oldest call's answer comes home. Returns what it granted to nobody, which is asked to be given back.
  std::int64_t deliver() {
    const Call call = std::move(calls.front());
    calls.pop_front();
    if (call.on_reset) return call.on_reset(call.answers.has_value()), 0;
    std::int64_t nobodys = 0;
    for (std::size_t i = 0; i < call.questions.size(); ++i) {
      const SharedAsked& asked = call.questions[i];
      if (asked.ticket == kNobody) continue;
      const std::int64_t back =
          sink_->on_answer(asked.ticket, call.answers ? (*call.answers)[i] : store::SharedAnswer{}, now);
      if (back == 0) continue;
      nobodys += back;
      if (asked.definition->shape() != limiter::Definition::Shape::counter)
        owed_.push_back({limiter::Operation::refund, asked.definition, asked.limit_tag, asked.key, back, 1,
                         kNobody, asked.shard});
    }
    return nobodys;
  }
  // As a turn's end: what is owed is asked.
  void flush() {
    for (SharedAsked& debt : std::exchange(owed_, {})) add_call({std::move(debt)});
  }
  // Decides and answers the oldest call.
  std::int64_t answer() {
    arrive(calls.front(), shard_now());
    return deliver();
  }
  // Whatever is on its way is lost with the connection.
  void lose_connection() {
    is_up = false;
    ++epoch;
    for (Call& call : calls) call.answers.reset();
    while (!calls.empty()) deliver();
  }
  [[nodiscard]] bool is_waiting(std::uint64_t ticket) const { return sink_->is_waiting(ticket); }

  void attach(store::SharedSink& sink) override { sink_ = &sink; }
  std::uint32_t shard_of(std::string_view, std::string_view key, std::size_t rank) const override {
    return static_cast<std::uint32_t>((key.size() + rank) % shards_);
  }
  std::uint32_t shards() const override { return shards_; }
  std::optional<store::ShardTime> time_of(std::uint32_t shard, store::SteadyTime when) const override {
    if (!is_up || shard == lost_shard) return std::nullopt;
    return store::ShardTime{limiter::TimePoint{when.time_since_epoch() + offset}, uncertainty, epoch,
                            is_answering};
  }
  bool ask(const store::SharedQuestion& question) override {
    if (!is_up || question.shard == lost_shard || room == 0) return false;
    --room;
    add_call({copy_of(question)});
    return true;
  }
  bool ask_together(std::span<const store::SharedQuestion> questions) override {
    if (!is_up || !can_ask_together) return false;
    std::vector<SharedAsked> all;
    for (const store::SharedQuestion& question : questions) all.push_back(copy_of(question));
    add_call(std::move(all)).is_together = true;
    return true;
  }
  void reset(std::uint32_t shard, std::string_view limit_tag, std::string_view key,
             std::function<void(bool)> done) override {
    if (!is_up) return done(false);
    SharedAsked asked;
    asked.limit_tag = limit_tag;
    asked.key = key;
    asked.shard = shard;
    add_call({asked}).on_reset = std::move(done);
  }
  std::string_view name() const override { return "fake"; }
  bool is_available() const override { return is_up; }
  std::string describe_shards() const override { return "# name\nfake\n"; }
  limiter::Micros next_probe_in(std::uint32_t, store::SteadyTime) const override {
    return limiter::Micros{1};
  }
  void collect(std::vector<stats::Metric>&) const override {}

 private:
  static SharedAsked copy_of(const store::SharedQuestion& question) {
    return {question.operation,
            question.definition->shared_from_this(),
            std::string(question.limit_tag),
            std::string(question.key),
            question.cost,
            question.times,
            question.ticket,
            question.shard};
  }
  Call& add_call(std::vector<SharedAsked> questions) {
    Call& call = calls.emplace_back();
    call.questions = std::move(questions);
    call.asked = now;
    call.at = shard_now();
    return call;
  }

  SharedKeys& keys_;
  const std::uint32_t shards_;
  store::SharedSink* sink_ = nullptr;
  std::vector<SharedAsked> owed_;
};

}  // namespace allowd::testing
