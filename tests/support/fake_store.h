// SPDX-License-Identifier: MIT
//
// A store that does what a test says: answers at once, later or never, or fails. It remembers what it was
// asked.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/store/store.h"

namespace allowd::testing {

class FakeStore final : public store::Store {
 public:
  enum class Mode { later, grant, fail };

  struct Asked {
    limiter::Operation operation;
    limiter::DefinitionPtr definition;
    std::string limit_tag;
    std::string key;
    std::int64_t cost;
    std::uint64_t ticket;
    store::SteadyTime at;
    store::KeyHash hash;
    std::uint32_t first_part = 0;
  };

  Mode mode = Mode::later;
  bool local = false;  // a local store always answers at once
  bool available = true;
  bool by_overflow = false;
  bool can_ask_together = false;
  limiter::Micros probe_in = std::chrono::milliseconds(250);
  std::map<std::size_t, limiter::Micros> probe_in_of;  // by shard, where it is another
  std::vector<Asked> asked;
  std::vector<std::pair<std::size_t, limiter::Micros>> expired;  // shards, and how long was waited for them
  std::vector<std::string> resets;                               // tag and key
  bool resets_wait = false;                                      // for the test to answer them
  std::vector<std::function<void(bool)>> waiting_resets;

  // An answer as a store would give it when `used` units are missing afterwards.
  [[nodiscard]] store::Answer decided(const Asked& question, std::int64_t used,
                                      limiter::Verdict verdict = limiter::Verdict::ok) const {
    return {store::Answer::Status::decided, by_overflow,
            question.definition->bucket().describe(used, question.cost, verdict)};
  }
  // Settles a question that was asked before.
  store::AnswerSink::Fate answer(const Asked& question, const store::Answer& answer, store::SteadyTime now) {
    return sink_->on_answer(question.ticket, answer, now);
  }
  store::AnswerSink::Fate grant(const Asked& question, store::SteadyTime now) {
    return answer(question, decided(question, question.cost * question.definition->bucket().unit()), now);
  }
  store::AnswerSink::Fate fail(const Asked& question, store::SteadyTime now) {
    return answer(question, {}, now);
  }
  [[nodiscard]] bool is_waiting(const Asked& question) const { return sink_->is_waiting(question.ticket); }

  void attach(store::AnswerSink& sink) override { sink_ = &sink; }
  store::Answer ask(const store::Question& question, store::SteadyTime now) override {
    asked.push_back({question.operation, question.definition->shared_from_this(),
                     std::string(question.limit_tag), std::string(question.key), question.cost,
                     question.ticket, now, question.hash, question.first_part});
    if (mode == Mode::fail) return {};
    if (mode == Mode::later && !local) return {store::Answer::Status::promised, false, {}};
    const bool fits = question.cost <= question.definition->bucket().burst();
    return decided(asked.back(), fits ? question.cost * question.definition->bucket().unit() : 0,
                   fits ? limiter::Verdict::ok : limiter::Verdict::never);
  }
  bool ask_together(std::span<const store::Question> questions) override {
    if (!can_ask_together) return false;
    for (const store::Question& question : questions) {
      asked.push_back({question.operation,
                       question.definition->shared_from_this(),
                       std::string(question.limit_tag),
                       std::string(question.key),
                       question.cost,
                       question.ticket,
                       {},
                       question.hash,
                       question.first_part});
    }
    return true;
  }
  void reset(const store::Question& question, std::function<void(bool)> done) override {
    resets.push_back(std::string(question.limit_tag) + std::string(question.key));
    if (resets_wait) return waiting_resets.push_back(std::move(done));
    done(available);
  }
  std::string describe_shards() const override { return "# name\nfake\n"; }
  std::string_view name() const override { return "fake"; }
  bool is_local() const override { return local; }
  bool is_available() const override { return available; }
  // A shard for every length of key, and parts in those behind it.
  std::size_t shard_of(const store::Question& question) const override {
    return question.key.size() + question.first_part;
  }
  limiter::Micros next_probe_in(std::size_t shard, store::SteadyTime) const override {
    const auto found = probe_in_of.find(shard);
    return found == probe_in_of.end() ? probe_in : found->second;
  }
  std::optional<std::uint32_t> epoch_now = 1;
  std::optional<std::uint32_t> epoch(std::size_t, store::SteadyTime) const override { return epoch_now; }
  std::optional<std::uint32_t> known_agents;
  store::KnownLeft left{};
  std::optional<std::uint32_t> agents(std::size_t) const override { return known_agents; }
  std::optional<std::uint32_t> most_agents() const override { return known_agents; }
  store::KnownLeft known_left(const store::Question&, store::SteadyTime) override { return left; }
  void note_expired(std::size_t shard, limiter::Micros waited, store::SteadyTime) override {
    expired.emplace_back(shard, waited);
  }
  void collect(std::vector<stats::Metric>& metrics) const override {
    metrics.push_back({"fake_questions", stats::Metric::Kind::gauge,
                       "Questions that the fake store was asked.", static_cast<double>(asked.size())});
  }

 private:
  store::AnswerSink* sink_ = nullptr;
};

}  // namespace allowd::testing
