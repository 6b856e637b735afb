// SPDX-License-Identifier: MIT
//
// What the pre-filter does with keys that it does not know, when their limit has a budget of new ones.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "agent/prefilter/prefilter.h"
#include "tests/support/printing.h"

namespace allowd::prefilter {
namespace {

using namespace std::chrono_literals;
using limiter::Operation;
using limiter::Verdict;
using store::Answer;

limiter::DefinitionPtr make_bucket(std::int64_t count, limiter::Micros period, std::int64_t burst) {
  return *limiter::Definition::make({{"", *limiter::TokenBucket::make({count, period}, burst)}}, false);
}

SteadyTime at(limiter::Micros since_start) { return SteadyTime{since_start}; }

// Admits as many as the test says.
class FakeBudget final : public store::KeyBudget {
 public:
  int places = 0;
  int asked = 0;

  bool admit(SteadyTime) override {
    ++asked;
    if (places == 0) return false;
    --places;
    return true;
  }
};

// Decides at `answer_all`, each key from a state that no question changes.
class FakeShared final : public store::SharedStore {
 public:
  struct Asked {
    Operation operation;
    std::string name;  // tag and key
    const limiter::Definition* definition;
    std::int64_t cost;
    std::uint32_t times;
    std::uint64_t ticket;
  };
  std::vector<Asked> asked;
  std::int64_t used = 0;  // permits, of every key
  bool is_up = true;

  void answer_all(SteadyTime now) {
    for (const Asked& each : std::exchange(asked, {})) {
      store::SharedAnswer answer;
      if (is_up) {
        answer.status = Answer::Status::decided;
        answer.at = limiter::TimePoint{now.time_since_epoch()};
        const std::int64_t unit = each.definition->bucket().unit();
        answer.states[0] = {unit, used * unit, answer.at};
        limiter::TierState state = answer.states[0];
        answer.decision = each.definition->apply({&state, 1}, each.operation, each.cost, answer.at);
      }
      static_cast<void>(sink_->on_answer(each.ticket, answer, now));
    }
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Asked& each : asked) all.push_back(each.name);
    return all;
  }

  void attach(store::SharedSink& sink) override { sink_ = &sink; }
  std::uint32_t shard_of(std::string_view, std::string_view, std::size_t) const override { return 0; }
  std::uint32_t shards() const override { return 1; }
  std::optional<store::ShardTime> time_of(std::uint32_t, SteadyTime now) const override {
    return store::ShardTime{limiter::TimePoint{now.time_since_epoch()}, 0us, 1};
  }
  bool ask(const store::SharedQuestion& question) override {
    asked.push_back({question.operation, std::string(question.limit_tag) + std::string(question.key),
                     question.definition, question.cost, question.times, question.ticket});
    return true;
  }
  bool ask_together(std::span<const store::SharedQuestion> questions) override {
    for (const store::SharedQuestion& question : questions) static_cast<void>(ask(question));
    return true;
  }
  void reset(std::uint32_t, std::string_view, std::string_view, std::function<void(bool)> done) override {
    done(true);
  }
  std::string_view name() const override { return "fake"; }
  bool is_available() const override { return true; }
  std::string describe_shards() const override { return ""; }
  limiter::Micros next_probe_in(std::uint32_t, SteadyTime) const override { return 1us; }
  void collect(std::vector<stats::Metric>&) const override {}

 private:
  store::SharedSink* sink_ = nullptr;
};

struct Scene : store::AnswerSink {
  Scene() { prefilter.attach(*this); }

  Answer ask(Operation operation, std::string_view key, std::int64_t cost, SteadyTime now,
             bool is_about_overflow = false) {
    return prefilter.ask({.operation = operation,
                          .definition = bucket.get(),
                          .limit_tag = tag,
                          .key = key,
                          .cost = cost,
                          .ticket = ++tickets,
                          .overflow = &overflow,
                          .is_about_overflow = is_about_overflow},
                         now);
  }
  Answer take(std::string_view key, SteadyTime now) { return ask(Operation::take, key, 1, now); }
  // Lets the store answer what waits.
  void turn(SteadyTime now) {
    prefilter.flush(now);
    shared.answer_all(now);
  }
  void make_known(std::string_view key, SteadyTime now) {
    budget.places = 1;
    static_cast<void>(take(key, now));
    turn(now);
    answers.clear();
  }
  Fate on_answer(std::uint64_t, const Answer& answer, SteadyTime) override {
    answers.push_back(answer);
    return Fate::delivered;
  }
  bool is_waiting(std::uint64_t) const override { return true; }

  limiter::DefinitionPtr bucket = make_bucket(10, 1s, 10);
  std::string tag = store::make_limit_tag('n', "api", "");
  FakeBudget budget;
  store::Overflow overflow{&budget, make_bucket(5, 1s, 5), store::make_limit_tag('o', "api", "")};
  FakeShared shared;
  Prefilter prefilter{shared, {.max_keys = 64}};
  std::uint64_t tickets = 0;
  std::vector<Answer> answers;
};

TEST_CASE("key budget: a new key that is admitted is known from then on") {
  Scene scene;
  scene.budget.places = 1;
  REQUIRE(scene.take("a", at(1s)).status == Answer::Status::promised);
  scene.prefilter.flush(at(1s));
  CHECK(scene.shared.names() == std::vector<std::string>{"n3:api:a"});
  scene.shared.answer_all(at(1s));
  REQUIRE(scene.answers.size() == 1);
  CHECK_FALSE(scene.answers[0].by_overflow);
  // Without a place, and long after: it needs none.
  static_cast<void>(scene.take("a", at(1h)));
  scene.prefilter.flush(at(1h));
  CHECK(scene.shared.names() == std::vector<std::string>{"n3:api:a"});
  CHECK(scene.budget.asked == 1);
}

TEST_CASE("key budget: keys without a place share one key, in one question, with its own numbers") {
  Scene scene;
  for (int i = 0; i < 4; ++i)
    REQUIRE(scene.take("new " + std::to_string(i), at(1s)).status == Answer::Status::promised);
  scene.prefilter.flush(at(1s));
  REQUIRE(scene.shared.names() == std::vector<std::string>{"o3:api:"});
  CHECK(scene.shared.asked[0].times == 4);
  scene.shared.used = 3;
  scene.shared.answer_all(at(1s));
  REQUIRE(scene.answers.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK(scene.answers[i].by_overflow);
    CHECK(scene.answers[i].decision.capacity == 5);
    CHECK(scene.answers[i].decision.verdict == (i < 2 ? Verdict::ok : Verdict::limited));
  }
  // Drained, it is refused here as any key is.
  const Answer refused = scene.take("another", at(1s + 1ms));
  CHECK(refused.status == Answer::Status::decided);
  CHECK(refused.by_overflow);
  CHECK(refused.is_local);
  CHECK(refused.decision.verdict == Verdict::limited);
  // None of them has become known.
  static_cast<void>(scene.take("new 0", at(1h)));
  CHECK(scene.budget.asked == 6);
  scene.prefilter.flush(at(1h));
  CHECK(scene.shared.names() == std::vector<std::string>{"o3:api:"});
}

TEST_CASE("key budget: whom those before crowd out is answered by the overflow too") {
  Scene scene;
  for (int i = 0; i < 5; ++i) static_cast<void>(scene.take("new " + std::to_string(i), at(1s)));
  const Answer answer = scene.take("one too many", at(1s));
  CHECK(answer.status == Answer::Status::decided);
  CHECK(answer.by_overflow);
  CHECK(answer.decision.capacity == 5);
}

TEST_CASE("key budget: what only looks or gives back is asked about the key, and makes nobody known") {
  Scene scene;
  static_cast<void>(scene.ask(Operation::peek, "a", 1, at(1s)));
  static_cast<void>(scene.ask(Operation::take, "a", 0, at(1s)));
  static_cast<void>(scene.ask(Operation::refund, "a", 2, at(1s)));
  static_cast<void>(scene.ask(Operation::force, "a", 0, at(1s)));
  CHECK(scene.budget.asked == 0);
  scene.prefilter.flush(at(1s));
  CHECK(scene.shared.names() == std::vector<std::string>(4, "n3:api:a"));
  scene.shared.answer_all(at(1s));
  REQUIRE(scene.answers.size() == 4);
  for (const Answer& answer : scene.answers) CHECK_FALSE(answer.by_overflow);
  // Else a look would be a way around the budget.
  static_cast<void>(scene.take("a", at(2s)));
  CHECK(scene.budget.asked == 1);
  scene.prefilter.flush(at(2s));
  CHECK(scene.shared.names() == std::vector<std::string>{"o3:api:"});
}

TEST_CASE("key budget: a force needs a place as well") {
  Scene scene;
  static_cast<void>(scene.ask(Operation::force, "a", 30, at(1s)));
  scene.prefilter.flush(at(1s));
  REQUIRE(scene.shared.names() == std::vector<std::string>{"o3:api:"});
  CHECK(scene.shared.asked[0].operation == Operation::force);
}

TEST_CASE("key budget: a cost that the overflow bucket cannot hold never passes, without a question") {
  Scene scene;
  const Answer answer = scene.ask(Operation::take, "a", 6, at(1s));
  CHECK(answer.status == Answer::Status::decided);
  CHECK(answer.by_overflow);
  CHECK(answer.decision.verdict == Verdict::never);
  CHECK(answer.decision.capacity == 5);
  CHECK_FALSE(scene.prefilter.has_unasked());
}

TEST_CASE("key budget: what the overflow gave can be given back to it") {
  Scene scene;
  scene.make_known("a", at(1s));
  const int before = scene.budget.asked;
  // Even about a key that has become known meanwhile.
  static_cast<void>(scene.ask(Operation::refund, "a", 1, at(1s), true));
  scene.prefilter.flush(at(1s));
  REQUIRE(scene.shared.names() == std::vector<std::string>{"o3:api:"});
  CHECK(scene.shared.asked[0].operation == Operation::refund);
  CHECK(scene.budget.asked == before);
}

TEST_CASE("key budget: when the store fails, the failure policy decides about new keys too") {
  Scene scene;
  scene.shared.is_up = false;
  static_cast<void>(scene.take("a", at(1s)));
  scene.turn(at(1s));
  REQUIRE(scene.answers.size() == 1);
  CHECK(scene.answers[0].status == Answer::Status::failed);
}

TEST_CASE("key budget: keys are asked about together only once all are known") {
  Scene scene;
  scene.make_known("a", at(1s));
  const auto question = [&](std::string_view key) {
    return store::Question{.operation = Operation::take,
                           .definition = scene.bucket.get(),
                           .limit_tag = scene.tag,
                           .key = key,
                           .ticket = ++scene.tickets,
                           .overflow = &scene.overflow};
  };
  const int before = scene.budget.asked;
  CHECK_FALSE(scene.prefilter.ask_together(std::vector{question("a"), question("b")}));
  CHECK(scene.budget.asked == before);
  CHECK(scene.shared.asked.empty());
  scene.make_known("b", at(1s));
  CHECK(scene.prefilter.ask_together(std::vector{question("a"), question("b")}));
}

TEST_CASE("key budget: a limit without one has as many new keys as come") {
  Scene scene;
  scene.overflow.budget = nullptr;
  for (int i = 0; i < 20; ++i) static_cast<void>(scene.take(std::to_string(i), at(1s)));
  scene.prefilter.flush(at(1s));
  CHECK(scene.shared.asked.size() == 20);
}

}  // namespace
}  // namespace allowd::prefilter
