// SPDX-License-Identifier: MIT
#include "agent/prefilter/prefilter.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/prefilter/fake_shared_store.h"
#include "tests/sim/random_limits.h"
#include "tests/support/printing.h"

namespace allowd::prefilter {
namespace {

using namespace std::chrono_literals;
using limiter::Decision;
using limiter::DefinitionPtr;
using limiter::Micros;
using limiter::Operation;
using limiter::Verdict;
using store::Answer;
using testing::FakeSharedStore;
using testing::SharedAsked;
using Fate = store::AnswerSink::Fate;
using Status = Answer::Status;

DefinitionPtr limit_of(limiter::Algorithm algorithm) {
  return *limiter::Definition::make({{"", std::move(algorithm), false}}, false);
}
DefinitionPtr bucket(std::int64_t count, Micros period, std::int64_t burst) {
  return limit_of(*limiter::TokenBucket::make({count, period}, burst));
}

class FakeSink final : public store::AnswerSink {
 public:
  std::map<std::uint64_t, std::vector<Answer>> answers;  // by ticket
  std::map<std::uint64_t, Fate> expired;                 // what became of whom the deadline met
  std::function<void(std::uint64_t)> on_each;

  Fate on_answer(std::uint64_t ticket, const Answer& answer, SteadyTime) override {
    answers[ticket].push_back(answer);
    if (on_each) on_each(ticket);
    const auto found = expired.find(ticket);
    return found == expired.end() ? Fate::delivered : found->second;
  }
  bool is_waiting(std::uint64_t ticket) const override {
    return !answers.contains(ticket) && !expired.contains(ticket);
  }
};

struct Query {
  std::int64_t cost = 1;
  Operation operation = Operation::take;
  std::string key = "user";
  Micros patience = 20ms;
};

// A host before a shared store, at a rate of 10/s unless the test says so.
struct Scene {
  explicit Scene(const Prefilter::Options& options = {}, std::uint32_t shards = 1)
      : store(keys, shards), prefilter(store, options) {
    store.offset = 1'700'000'000s;
    prefilter.attach(sink);
    pass(0us);
  }

  void pass(Micros time) { store.now = now += time; }
  Answer ask(const Query& query = {}) {
    ++last;
    return prefilter.ask(
        {query.operation, limit.get(), kTag, query.key, query.cost, last, now + query.patience, 0}, now);
  }
  std::vector<std::uint64_t> ask_times(int count, const Query& query = {}) {
    std::vector<std::uint64_t> tickets;
    for (int i = 0; i < count; ++i) {
      REQUIRE(ask(query).status == Status::promised);
      tickets.push_back(last);
    }
    return tickets;
  }
  void flush() {
    prefilter.flush(now);
    store.flush();
  }
  // Ends the turn; the store answers all that it was asked.
  void settle() {
    flush();
    while (!store.calls.empty()) store.answer();
  }
  Answer settled(const Query& query = {}) {
    REQUIRE(ask(query).status == Status::promised);
    const std::uint64_t ticket = last;
    settle();
    return only_answer(ticket);
  }
  Answer only_answer(std::uint64_t ticket) {
    REQUIRE(sink.answers[ticket].size() == 1);
    return sink.answers[ticket][0];
  }
  bool passed(std::uint64_t ticket) { return only_answer(ticket).decision.verdict == Verdict::ok; }
  // Another host's question, decided at once.
  void others(std::int64_t cost, Operation operation = Operation::take, const std::string& key = "user") {
    static_cast<void>(testing::decide(keys.of(kTag, key), {operation, limit, kTag, key, cost},
                                      store.shard_now(), store.shard_now()));
  }
  std::uint64_t metric(std::string_view name) const {
    std::vector<stats::Metric> metrics;
    prefilter.collect(metrics);
    const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const auto& each) {
      return each.name == "prefilter_" + std::string(name);
    });
    REQUIRE(found != metrics.end());
    return static_cast<std::uint64_t>(found->value);
  }
  // What the store was asked and has not answered: "take 1 x3".
  std::vector<std::string> asked() const {
    static constexpr const char* kNames[] = {"take", "peek", "refund", "force"};
    std::vector<std::string> all;
    for (const auto& call : store.calls) {
      for (const SharedAsked& each : call.questions)
        all.push_back(std::string(kNames[static_cast<int>(each.operation)]) + " " +
                      std::to_string(each.cost) + " x" + std::to_string(each.times));
    }
    return all;
  }

  static constexpr std::string_view kTagText = "n1:x:";
  const std::string kTag{kTagText};
  DefinitionPtr limit = bucket(10, 1s, 10);
  SteadyTime now{1000s};
  testing::SharedKeys keys;
  FakeSink sink;
  FakeSharedStore store;
  Prefilter prefilter;
  std::uint64_t last = 0;  // ticket
};

using Asked = std::vector<std::string>;

// --- What is refused here.

TEST_CASE("prefilter: after a refusal it refuses alone, with what the store would say") {
  Scene scene;
  scene.others(10);
  const Answer first = scene.settled();
  CHECK(first.decision.verdict == Verdict::limited);
  CHECK_FALSE(first.is_local);
  scene.pass(30ms);
  const Answer refused = scene.ask();
  CHECK(refused.status == Status::decided);
  CHECK(refused.is_local);
  CHECK(refused.decision.verdict == Verdict::limited);
  CHECK(refused.decision.retry_after == 70ms);
  CHECK(refused.decision.remaining == 0);
  CHECK(refused.decision.capacity == 10);
  CHECK(refused.decision.reset_after == 970ms);
  scene.flush();
  CHECK(scene.asked() == Asked{});
  CHECK(scene.metric("refusals_total") == 1);
  scene.pass(70ms);
  CHECK(scene.ask().status == Status::promised);
}

TEST_CASE("prefilter: a grant too tells what is left") {
  Scene scene;
  CHECK(scene.settled({.cost = 8}).decision.verdict == Verdict::ok);
  CHECK(scene.ask({.cost = 3}).decision.retry_after == 100ms);
  CHECK(scene.ask({.cost = 2}).status == Status::promised);
}

TEST_CASE("prefilter: a refusal of cost 5 says nothing against cost 1") {
  Scene scene({.hold = 0us});
  scene.others(7);
  CHECK(scene.settled({.cost = 5}).decision.verdict == Verdict::limited);
  CHECK(scene.ask({.cost = 4}).status == Status::decided);
  CHECK(scene.settled({.cost = 1}).decision.verdict == Verdict::ok);
}

TEST_CASE("prefilter: what the store said is trusted for so long and no longer") {
  Scene scene({.trust = 500ms});
  scene.limit = bucket(1, 1min, 10);
  static_cast<void>(scene.settled({.cost = 10}));
  scene.others(10, Operation::refund);
  scene.pass(500ms - 1us);
  CHECK(scene.ask().status == Status::decided);
  scene.pass(1us);
  CHECK(scene.settled().decision.verdict == Verdict::ok);
}

TEST_CASE("prefilter: other rules drop what is known") {
  const auto with = [](const std::string& name, Micros period, std::int64_t burst) {
    return *limiter::Definition::make({{"second", *limiter::TokenBucket::make({10, 1s}, 10), false},
                                       {name, *limiter::TokenBucket::make({burst, period}, burst), false}},
                                      false);
  };
  Scene scene;
  scene.limit = with("minute", 1min, 10);
  static_cast<void>(scene.settled({.cost = 10}));
  scene.pass(900ms);
  static_cast<void>(scene.settled({.operation = Operation::peek}));
  const Answer refused = scene.ask({.cost = 5});
  REQUIRE(refused.status == Status::decided);
  REQUIRE(refused.decision.tier == 1);
  // Of the tier that has its place now nothing is used.
  scene.limit = with("hour", 1h, 8);
  CHECK(scene.settled({.cost = 5}).decision.verdict == Verdict::ok);
}

TEST_CASE("prefilter: another epoch of the shard's time drops what is known") {
  Scene scene;
  static_cast<void>(scene.settled({.cost = 10}));
  scene.keys.lose_all();
  scene.pass(1us);
  CHECK(scene.ask().status == Status::decided);
  ++scene.store.epoch;
  scene.pass(1us);
  CHECK(scene.settled().decision.verdict == Verdict::ok);
}

TEST_CASE("prefilter: a clock that steps back within its error makes no wait of its own") {
  Scene scene;
  CHECK(scene.settled({.cost = 4}).decision.remaining == 6);
  scene.store.offset -= 5ms;
  scene.pass(1us);
  CHECK(scene.ask({.cost = 6}).status == Status::promised);
}

TEST_CASE("prefilter: only what asks to pass is refused here") {
  Scene scene;
  static_cast<void>(scene.settled({.cost = 10}));
  for (const Query& query : {Query{.cost = 0}, Query{.operation = Operation::peek},
                             Query{.operation = Operation::refund}, Query{.operation = Operation::force}})
    CHECK(scene.ask(query).status == Status::promised);
  scene.flush();
  CHECK(scene.asked() == Asked{"take 0 x1", "peek 1 x1", "refund 1 x1", "force 1 x1"});
}

TEST_CASE("prefilter: keys and limits are apart, and each key is asked of its own shard") {
  Scene scene({}, 2);
  static_cast<void>(scene.settled({.cost = 10, .key = "even"}));
  CHECK(scene.ask({.key = "even"}).status == Status::decided);
  CHECK(scene.ask({.key = "odd"}).status == Status::promised);
  scene.flush();
  REQUIRE(scene.store.calls.size() == 1);
  CHECK(scene.store.calls[0].questions[0].shard == 1);
  const store::Question question{Operation::take, scene.limit.get(), scene.kTag, "odd", 1, 0, scene.now};
  CHECK(scene.prefilter.shard_of(question) == 1);
}

// --- The queue.

TEST_CASE("prefilter: one question about a key is under way at a time, with all who asked in a turn") {
  Scene scene;
  const auto first = scene.ask_times(3);
  scene.flush();
  CHECK(scene.asked() == Asked{"take 1 x3"});
  const auto second = scene.ask_times(4);
  const auto elsewhere = scene.ask_times(2, {.key = "other"});
  scene.flush();
  CHECK(scene.asked() == Asked{"take 1 x3", "take 1 x2"});  // of the other key
  scene.store.answer();
  CHECK(scene.passed(first[2]));
  scene.flush();
  CHECK(scene.asked() == Asked{"take 1 x2", "take 1 x4"});
  scene.settle();
  for (const auto ticket : second) CHECK(scene.passed(ticket));
  for (const auto ticket : elsewhere) CHECK(scene.passed(ticket));
  CHECK(scene.metric("questions_total") == 3);
  CHECK(scene.metric("queries_asked_total") == 9);
  CHECK(scene.metric("queries_waiting") == 0);
}

TEST_CASE("prefilter: of equal costs in a row as many pass as fit, each told what is left to it") {
  Scene scene;
  scene.others(7);
  const auto tickets = scene.ask_times(5);
  scene.settle();
  for (int i = 0; i < 3; ++i) {
    CHECK(scene.passed(tickets[static_cast<std::size_t>(i)]));
    CHECK(scene.only_answer(tickets[static_cast<std::size_t>(i)]).decision.remaining == 2 - i);
  }
  for (const std::size_t i : {3u, 4u}) {
    CHECK(scene.only_answer(tickets[i]).decision.verdict == Verdict::limited);
    CHECK(scene.only_answer(tickets[i]).decision.retry_after == 100ms);
  }
}

TEST_CASE("prefilter: only neighbours that ask the same share a row, and order stays") {
  Scene scene;
  scene.limit = bucket(100, 1s, 100);
  for (const std::int64_t cost : {1, 1, 5, 5, 5, 1}) static_cast<void>(scene.ask({.cost = cost}));
  static_cast<void>(scene.ask({.operation = Operation::peek}));
  static_cast<void>(scene.ask({.operation = Operation::peek}));
  // Refunds and forces do not go in rows.
  for (const Operation each : {Operation::refund, Operation::refund, Operation::force, Operation::force})
    static_cast<void>(scene.ask({.operation = each}));
  scene.flush();
  CHECK(scene.asked() == Asked{"take 1 x2", "take 5 x3", "take 1 x1", "peek 1 x2", "refund 1 x1",
                               "refund 1 x1", "force 1 x1", "force 1 x1"});
  CHECK(scene.metric("questions_total") == 1);
}

TEST_CASE("prefilter: logs are asked one by one") {
  Scene scene;
  scene.limit = limit_of(*limiter::SlidingLog::make({5, 1s}));
  static_cast<void>(scene.ask_times(2));
  scene.flush();
  CHECK(scene.asked() == Asked{"take 1 x1", "take 1 x1"});
}

TEST_CASE("prefilter: all who share questions are answered as if each had asked alone") {
  sim::Random random(3);
  sim::RandomLimits limits(random);
  int shared = 0, local = 0;
  for (int round = 0; round < 3000; ++round) {
    CAPTURE(round);
    Scene scene({.hold = 0us, .max_keys = 4});
    scene.limit = limits.any();
    const std::int64_t most = scene.limit->strictest().capacity();
    const auto cost = [&] {
      return random.one_in(2) ? 1
                              : random.between(1, std::min<std::int64_t>(most, random.one_in(3) ? most : 6));
    };
    if (random.one_in(2)) scene.others(random.of_any_size(most));
    scene.pass(Micros{random.of_any_size(2 * scene.limit->tiers()[0].window().count())});
    static_cast<void>(scene.ask({.cost = cost()}));
    scene.flush();
    struct Each {
      std::uint64_t ticket;
      Query query;
      std::optional<Answer> at_once;
    };
    std::vector<Each> all;
    for (std::int64_t i = random.between(2, 12); i > 0; --i) {
      Query query{.cost = cost()};
      if (random.one_in(6))
        query.operation = random.choose({Operation::peek, Operation::refund, Operation::force});
      if (query.operation != Operation::take && random.one_in(3)) query.cost = 0;
      const Answer answer = scene.ask(query);
      all.push_back({scene.last, query, std::nullopt});
      if (answer.status == Status::decided) all.back().at_once = answer;
    }
    while (!scene.store.calls.empty()) scene.store.answer();
    testing::SharedValue value = scene.keys.of(scene.kTag, "user");
    scene.settle();
    for (const Each& each : all) {
      const Answer given = each.at_once ? *each.at_once : scene.only_answer(each.ticket);
      const SharedAsked alone{each.query.operation, scene.limit, "", "", each.query.cost};
      testing::SharedValue untouched = value;
      const auto expected = testing::decide(given.is_local ? untouched : value, alone,
                                            scene.store.shard_now(), scene.store.shard_now());
      if (given.is_local) {
        CHECK_FALSE(testing::passes(*scene.limit, expected.first.decision));
        ++local;
      } else {
        const bool is_same = given.decision == expected.first.decision;
        CHECK(is_same);
        ++shared;
      }
    }
  }
  CHECK(shared > 10'000);
  CHECK(local > 2'000);
}

TEST_CASE("prefilter: who waited passes the bound again before the next question") {
  Scene scene;
  scene.others(8);
  static_cast<void>(scene.ask_times(2));
  scene.flush();
  const auto waiting = scene.ask_times(3);
  const auto peeking = scene.ask_times(1, {.operation = Operation::peek});
  scene.store.answer();  // takes what is left
  for (const auto ticket : waiting) {
    CHECK(scene.only_answer(ticket).is_local);
    CHECK(scene.only_answer(ticket).decision.verdict == Verdict::limited);
    CHECK(scene.only_answer(ticket).decision.retry_after == 100ms);
  }
  CHECK(scene.sink.is_waiting(peeking[0]));
  scene.flush();
  CHECK(scene.asked() == Asked{"peek 1 x1"});
}

TEST_CASE("prefilter: behind a refund that waits nobody is refused here") {
  Scene scene;
  static_cast<void>(scene.settled({.cost = 10}));
  static_cast<void>(scene.ask_times(1, {.cost = 3, .operation = Operation::refund}));
  const auto behind = scene.ask_times(2);
  scene.settle();
  for (const auto ticket : behind) CHECK(scene.passed(ticket));
}

TEST_CASE("prefilter: nor when both have waited for the answer to an earlier question") {
  Scene scene;
  scene.others(10);
  static_cast<void>(scene.ask_times(1));
  scene.flush();
  const auto before = scene.ask_times(1);
  static_cast<void>(scene.ask_times(1, {.cost = 3, .operation = Operation::refund}));
  const auto behind = scene.ask_times(1, {.cost = 2});
  scene.store.answer();
  CHECK(scene.only_answer(before[0]).is_local);
  scene.settle();
  CHECK(scene.passed(behind[0]));
}

TEST_CASE("prefilter: who was answered meanwhile leaves the queue unasked") {
  Scene scene;
  const auto tickets = scene.ask_times(3);
  scene.sink.expired[tickets[1]] = Fate::refused_meanwhile;
  scene.flush();
  CHECK(scene.asked() == Asked{"take 1 x2"});
  CHECK(scene.only_answer(tickets[1]).status != Status::decided);
  scene.settle();
  CHECK(scene.keys.of(scene.kTag, "user").parts.begin()->second.used == 2 * scene.limit->bucket().unit());
  CHECK(scene.metric("queries_waiting") == 0);
}

TEST_CASE("prefilter: when all have left nothing is asked, and the key is asked anew by the next") {
  Scene scene;
  const auto tickets = scene.ask_times(2);
  for (const auto ticket : tickets) scene.sink.expired[ticket] = Fate::allowed_meanwhile;
  scene.flush();
  CHECK(scene.asked() == Asked{});
  for (const auto ticket : tickets) CHECK(scene.sink.answers[ticket].size() == 1);
  CHECK(scene.metric("queries_waiting") == 0);
  CHECK(scene.settled().decision.verdict == Verdict::ok);
}

TEST_CASE("prefilter: who leaves during a question is answered with it, and nobody who waits is lost") {
  Scene scene;
  static_cast<void>(scene.ask_times(1));
  scene.flush();
  const auto waiting = scene.ask_times(2);
  scene.sink.expired[waiting[0]] = Fate::refused_meanwhile;
  scene.store.answer();
  CHECK(scene.sink.answers[waiting[0]].size() == 1);
  scene.flush();
  CHECK(scene.asked() == Asked{"take 1 x1"});
  scene.settle();
  CHECK(scene.passed(waiting[1]));
}

TEST_CASE("prefilter: a late grant whose asker was refused is given back once, and the level is unsure") {
  Scene scene;
  scene.limit = bucket(10, 1s, 11);
  const auto tickets = scene.ask_times(3, {.cost = 3});
  scene.flush();
  scene.sink.expired[tickets[0]] = Fate::refused_meanwhile;
  scene.sink.expired[tickets[1]] = Fate::allowed_meanwhile;
  CHECK(scene.store.is_waiting(scene.store.calls[0].questions[0].ticket));
  CHECK(scene.store.answer() == 3);
  CHECK(scene.passed(tickets[2]));
  // Until it is back, the bound would be too low.
  CHECK(scene.ask({.cost = 5}).status == Status::promised);
  scene.settle();
  CHECK(scene.keys.of(scene.kTag, "user").parts.begin()->second.used == 6 * scene.limit->bucket().unit());
}

TEST_CASE("prefilter: what was refused, peeked at or never decided is not given back") {
  Scene scene;
  scene.others(9);
  const auto tickets = scene.ask_times(2, {.cost = 2});
  const auto peeks = scene.ask_times(1, {.operation = Operation::peek});
  scene.flush();
  for (const auto ticket : {tickets[0], tickets[1], peeks[0]})
    scene.sink.expired[ticket] = Fate::refused_meanwhile;
  CHECK_FALSE(scene.store.is_waiting(scene.store.calls[0].questions[0].ticket));
  CHECK(scene.store.answer() == 0);
  CHECK(scene.store.answer() == 0);
  const auto lost = scene.ask_times(1);
  scene.flush();
  scene.sink.expired[lost[0]] = Fate::refused_meanwhile;
  scene.store.lose_connection();
  scene.store.is_up = true;
  scene.flush();
  CHECK(scene.asked() == Asked{});
}

TEST_CASE("prefilter: who asks again when answered goes into the next question") {
  Scene scene;
  const auto tickets = scene.ask_times(2);
  scene.sink.on_each = [&](std::uint64_t ticket) {
    if (ticket == tickets[0]) CHECK(scene.ask({.cost = 2}).status == Status::promised);
  };
  scene.flush();
  scene.store.answer();
  CHECK(scene.prefilter.has_unasked());
  scene.flush();
  CHECK(scene.asked() == Asked{"take 2 x1"});
  scene.settle();
  CHECK(scene.passed(tickets[1] + 1));
}

// --- Crowded out.

TEST_CASE("prefilter: who finds all there can be spoken for is refused at once") {
  Scene scene;
  static_cast<void>(scene.ask_times(1));
  scene.flush();
  static_cast<void>(scene.ask_times(10));
  const Answer refused = scene.ask();
  CHECK(refused.status == Status::decided);
  CHECK(refused.is_local);
  CHECK(refused.decision.verdict == Verdict::limited);
  CHECK(refused.decision.remaining == 0);
  CHECK(refused.decision.retry_after == 1us);  // those ahead may be refused, by the least part of a permit
  CHECK(scene.metric("crowded_out_total") == 1);
  // A smaller number ahead of it leaves room.
  static_cast<void>(scene.ask_times(8, {.key = "other"}));
  CHECK(scene.ask({.cost = 2, .key = "other"}).status == Status::promised);
  CHECK(scene.ask({.cost = 1, .key = "other"}).status == Status::promised);
  CHECK(scene.ask({.cost = 2, .key = "other"}).status == Status::decided);
}

TEST_CASE("prefilter: those ahead count only if whatever refuses them refuses it too") {
  Scene scene;
  SUBCASE("not larger costs, which may be refused and leave it room") {
    static_cast<void>(scene.ask_times(1, {.cost = 9}));
    CHECK(scene.ask({.cost = 8}).status == Status::promised);
  }
  SUBCASE("not those who leave before it") {
    static_cast<void>(scene.ask_times(10, {.patience = 19ms}));
    CHECK(scene.ask().status == Status::promised);
  }
  SUBCASE("not where a refund waits") {
    static_cast<void>(scene.ask_times(10));
    static_cast<void>(scene.ask_times(1, {.operation = Operation::refund}));
    CHECK(scene.ask().status == Status::promised);
  }
  SUBCASE("not peeks and forces") {
    static_cast<void>(scene.ask_times(5, {.cost = 10, .operation = Operation::peek}));
    static_cast<void>(scene.ask_times(5, {.cost = 10, .operation = Operation::force}));
    CHECK(scene.ask().status == Status::promised);
  }
  SUBCASE("not those of other rules") {
    static_cast<void>(scene.ask_times(10));
    const DefinitionPtr kept = scene.limit;
    scene.limit = bucket(10, 1s, 9);
    CHECK(scene.ask().status == Status::promised);
    scene.flush();
  }
  SUBCASE("never a peek") {
    static_cast<void>(scene.ask_times(10));
    CHECK(scene.ask({.operation = Operation::peek}).status == Status::promised);
  }
  CHECK(scene.metric("crowded_out_total") == 0);
}

// --- Hold.

// Others took what the bound says is there: a question in vain.
void ask_in_vain(Scene& scene, std::int64_t cost = 1) {
  scene.others(10, Operation::force);
  CHECK(scene.settled({.cost = cost}).decision.verdict == Verdict::limited);
}

TEST_CASE("prefilter: a key that others drain is asked ever more seldom, up to `hold`") {
  Scene scene({.hold = 500ms});
  scene.limit = bucket(10, 1s, 10);
  static_cast<void>(scene.settled());  // the bound says 9
  for (const Micros held : {100ms, 200ms, 400ms, 500ms, 500ms}) {
    CAPTURE(held);
    ask_in_vain(scene);
    // Nothing is there now; the bound alone would ask again after 100 ms.
    scene.pass(std::max<Micros>(held - 1us, 100ms));
    if (held > 100ms) {
      const Answer refused = scene.ask();
      CHECK(refused.status == Status::decided);
      CHECK(refused.is_local);
      CHECK(refused.decision.retry_after == 1us);
      CHECK(refused.decision.verdict == Verdict::limited);
      scene.pass(1us);
    }
    CHECK(scene.ask().status == Status::promised);
    // That one left again, so that the next round begins alike.
    scene.sink.expired[scene.last] = Fate::refused_meanwhile;
    scene.flush();
  }
  CHECK(scene.metric("held_total") == 4);
}

TEST_CASE("prefilter: while held, a refusal says the longer of both waits") {
  Scene scene({.hold = 500ms});
  static_cast<void>(scene.settled());
  ask_in_vain(scene);
  scene.pass(100ms);
  ask_in_vain(scene);
  CHECK(scene.ask({.cost = 1}).decision.retry_after == 200ms);
  CHECK(scene.ask({.cost = 5}).decision.retry_after == 500ms);
  CHECK(scene.metric("held_total") == 0);  // the bound refuses them too
}

TEST_CASE("prefilter: a grant ends the hold") {
  Scene scene({.hold = 500ms});
  static_cast<void>(scene.settled());
  ask_in_vain(scene);
  scene.pass(100ms);
  ask_in_vain(scene);
  scene.pass(200ms);
  CHECK(scene.settled().decision.verdict == Verdict::ok);
  CHECK(scene.ask().status == Status::promised);
  scene.settle();
  // And the next begins small again.
  scene.pass(100ms);
  ask_in_vain(scene);
  scene.pass(100ms);
  CHECK(scene.ask().status == Status::promised);
}

TEST_CASE("prefilter: what is refused without that the bound promised anything starts no hold") {
  Scene scene({.hold = 500ms});
  scene.others(10);
  CHECK(scene.settled().decision.verdict == Verdict::limited);
  scene.pass(100ms);
  CHECK(scene.ask().status == Status::promised);
  scene.settle();
  CHECK(scene.metric("held_total") == 0);
}

TEST_CASE("prefilter: what only the clocks' error let through starts no hold") {
  Scene scene({.hold = 500ms});
  scene.store.uncertainty = 80ms;
  static_cast<void>(scene.settled({.cost = 10}));
  scene.pass(50ms);  // refilled by half a permit, or by 110 ms' worth
  CHECK(scene.settled().decision.verdict == Verdict::limited);
  scene.pass(1us);
  CHECK(scene.ask().status == Status::promised);
  CHECK(scene.metric("held_total") == 0);
}

TEST_CASE("prefilter: no smaller cost is held back") {
  Scene scene({.hold = 500ms});
  static_cast<void>(scene.settled());
  scene.others(6);
  CHECK(scene.settled({.cost = 9}).decision.verdict == Verdict::limited);  // in vain: 3 are left
  scene.pass(700ms);
  scene.others(7);
  CHECK(scene.settled({.cost = 9}).decision.verdict == Verdict::limited);  // again: held for 200 ms
  scene.pass(100ms);
  CHECK(scene.ask({.cost = 9}).status == Status::decided);
  CHECK(scene.settled({.cost = 3}).decision.verdict == Verdict::ok);
}

TEST_CASE("prefilter: hold 0 holds nothing") {
  Scene scene({.hold = 0us});
  static_cast<void>(scene.settled());
  for (int i = 0; i < 5; ++i) {
    ask_in_vain(scene);
    scene.pass(100ms);
    CHECK(scene.ask().status == Status::promised);
    scene.sink.expired[scene.last] = Fate::refused_meanwhile;
    scene.flush();
  }
  CHECK(scene.metric("held_total") == 0);
}

// --- Bounds of its own, and failures.

TEST_CASE("prefilter: more than max_waiting are not let wait, whatever the key") {
  Scene scene({.max_waiting = 3});
  const auto tickets = scene.ask_times(2);
  static_cast<void>(scene.ask_times(1, {.key = "other"}));
  CHECK(scene.ask({.key = "third"}).status == Status::failed);
  CHECK(scene.metric("queries_turned_away_total") == 1);
  scene.settle();
  CHECK(scene.passed(tickets[0]));
  CHECK(scene.ask({.key = "third"}).status == Status::promised);
}

TEST_CASE("prefilter: a key that finds no place is asked all the same") {
  Scene scene({.max_keys = 4});
  for (int i = 0; i < 4; ++i) static_cast<void>(scene.ask_times(1, {.key = "k" + std::to_string(i)}));
  scene.flush();
  const auto fifth = scene.ask_times(2, {.key = "fifth"});
  scene.flush();
  CHECK(scene.store.calls.size() == 6);  // unknown keys do not share
  scene.settle();
  for (const auto ticket : fifth) CHECK(scene.passed(ticket));
  CHECK(scene.metric("queries_waiting") == 0);
  // There is room again.
  static_cast<void>(scene.settled({.cost = 8, .key = "fifth"}));
  CHECK(scene.ask({.key = "fifth"}).status == Status::decided);
  CHECK(scene.metric("keys_dropped_total") == 1);
}

TEST_CASE("prefilter: what the store does not take is answered so, and asked again by the next") {
  Scene scene;
  scene.store.room = 1;
  const auto small = scene.ask_times(2, {.cost = 1});
  const auto large = scene.ask_times(2, {.cost = 2});
  scene.flush();
  for (const auto ticket : large) CHECK(scene.only_answer(ticket).status == Status::failed);
  scene.store.room = 100;
  scene.settle();
  for (const auto ticket : small) CHECK(scene.passed(ticket));
  CHECK(scene.settled().decision.verdict == Verdict::ok);
  CHECK(scene.metric("queries_waiting") == 0);
}

TEST_CASE("prefilter: while the shard is down all are told so, and nothing is refused from memory") {
  Scene scene;
  static_cast<void>(scene.settled({.cost = 10}));
  scene.store.is_up = false;
  scene.pass(1us);
  const auto tickets = scene.ask_times(2);
  scene.flush();
  for (const auto ticket : tickets) CHECK(scene.only_answer(ticket).status == Status::failed);
  CHECK(scene.metric("queries_waiting") == 0);
}

TEST_CASE("prefilter: while the shard does not answer nobody waits behind what it was asked before") {
  Scene scene;
  REQUIRE(scene.ask().status == Status::promised);
  const std::uint64_t first = scene.last;
  scene.flush();
  REQUIRE(scene.ask().status == Status::promised);
  const std::uint64_t second = scene.last;
  scene.pass(1ms);
  scene.store.is_answering = false;
  scene.store.room = 0;
  REQUIRE(scene.ask().status == Status::promised);
  const std::uint64_t third = scene.last;
  scene.flush();
  CHECK_FALSE(scene.sink.answers.contains(first));
  CHECK(scene.only_answer(second).status == Status::failed);
  CHECK(scene.only_answer(third).status == Status::failed);
  // What was asked may still be answered, and teaches.
  scene.store.answer();
  CHECK(scene.passed(first));
  scene.others(9);
  scene.store.room = 1;
  scene.store.is_answering = true;
  CHECK_FALSE(scene.passed((scene.settled(), scene.last)));
  scene.store.is_answering = false;
  scene.pass(1ms);
  const Answer refused = scene.ask();
  CHECK(refused.is_local);
  CHECK(refused.decision.verdict == Verdict::limited);
}

TEST_CASE("prefilter: a question whose connection is gone holds nobody up") {
  Scene scene;
  const auto stuck = scene.ask_times(1);
  scene.flush();
  const auto waiting = scene.ask_times(1, {.cost = 2});
  // The link is up again before it has given up the old question.
  ++scene.store.epoch;
  scene.pass(1ms);
  const auto fresh = scene.ask_times(1, {.cost = 3});
  scene.flush();
  CHECK(scene.asked() == Asked{"take 1 x1", "take 2 x1", "take 3 x1"});
  // The new question's answer comes first, and is what is known.
  auto old = std::move(scene.store.calls.front());
  scene.store.calls.pop_front();
  scene.settle();
  CHECK(scene.passed(waiting[0]));
  CHECK(scene.passed(fresh[0]));
  CHECK(scene.ask({.cost = 6}).status == Status::decided);
  scene.store.calls.push_back(std::move(old));
  scene.store.calls.front().at -= 10s;
  scene.store.answer();
  CHECK(scene.sink.answers[stuck[0]].size() == 1);
  CHECK(scene.ask({.cost = 6}).status == Status::decided);
  CHECK(scene.metric("queries_waiting") == 0);
}

TEST_CASE("prefilter: when the connection is lost everybody is told, those who waited after the next try") {
  Scene scene;
  const auto asked = scene.ask_times(1);
  scene.flush();
  const auto waiting = scene.ask_times(2);
  scene.store.lose_connection();
  CHECK(scene.only_answer(asked[0]).status == Status::failed);
  scene.pass(1ms);
  scene.flush();
  for (const auto ticket : waiting) CHECK(scene.only_answer(ticket).status == Status::failed);
  scene.store.is_up = true;
  scene.pass(1ms);
  CHECK(scene.settled().decision.verdict == Verdict::ok);
  CHECK(scene.metric("queries_waiting") == 0);
}

TEST_CASE("prefilter: an answer from before what is known teaches nothing") {
  Scene scene({.max_keys = 4});
  for (int i = 0; i < 4; ++i) static_cast<void>(scene.ask_times(1, {.key = "k" + std::to_string(i)}));
  scene.flush();
  static_cast<void>(scene.ask_times(1, {.cost = 2}));  // has no place yet
  scene.flush();
  for (int i = 0; i < 4; ++i) scene.store.answer();
  auto first = std::move(scene.store.calls.front());
  scene.store.calls.clear();
  scene.store.arrive(first, scene.store.shard_now());
  scene.pass(1ms);
  static_cast<void>(scene.settled({.cost = 8}));
  CHECK(scene.ask().status == Status::decided);
  scene.store.calls.push_back(std::move(first));
  scene.store.deliver();
  CHECK(scene.ask().status == Status::decided);
}

TEST_CASE("prefilter: places of queues are used again") {
  Scene scene({.max_keys = 64});
  std::uint64_t most = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 5; ++i) {
      const std::string key = "r" + std::to_string(round) + "k" + std::to_string(i);
      static_cast<void>(scene.ask_times(3, {.key = key}));
    }
    scene.flush();
    for (const auto& call : scene.store.calls) most = std::max(most, call.questions[0].ticket >> 32);
    if (round % 3 == 0) {
      scene.store.lose_connection();
      scene.store.is_up = true;
    }
    scene.settle();
    scene.pass(1ms);
  }
  CHECK(most <= 5);
  CHECK(scene.metric("queries_waiting") == 0);
  CHECK(scene.metric("keys") <= 64);
}

// --- Together, reset.

std::vector<store::Question> pair_of(const Scene& scene, std::int64_t cost, std::uint64_t first_ticket) {
  return {{Operation::take, scene.limit.get(), scene.kTag, "a", cost, first_ticket, scene.now + 20ms},
          {Operation::take, scene.limit.get(), scene.kTag, "b", cost, first_ticket + 1, scene.now + 20ms}};
}

TEST_CASE("prefilter: what is asked together is answered to each, by its own ticket") {
  Scene scene;
  REQUIRE(scene.prefilter.ask_together(pair_of(scene, 4, 101)));
  REQUIRE(scene.prefilter.ask_together(pair_of(scene, 7, 103)));
  REQUIRE(scene.store.calls.size() == 2);
  for (const auto& call : scene.store.calls) {
    for (const SharedAsked& asked : call.questions) CHECK(scene.store.is_waiting(asked.ticket));
  }
  CHECK(scene.store.answer() == 0);
  CHECK_FALSE(scene.sink.answers.contains(103));
  CHECK(scene.store.answer() == 0);
  CHECK(scene.passed(101));
  CHECK(scene.passed(102));
  CHECK(scene.only_answer(103).decision.verdict == Verdict::limited);
  CHECK(scene.only_answer(104).decision.verdict == Verdict::limited);
}

TEST_CASE("prefilter: places of what was asked together are used again") {
  Scene scene;
  scene.limit = bucket(100, 1s, 100);
  for (std::uint64_t i = 0; i < 20; i += 2) {
    REQUIRE(scene.prefilter.ask_together(pair_of(scene, 1, 101 + i)));
    for (const SharedAsked& asked : scene.store.calls[0].questions)
      CHECK((asked.ticket & ~(std::uint64_t{1} << 63)) < 2);
    CHECK(scene.store.answer() == 0);
    CHECK(scene.passed(101 + i));
    CHECK(scene.passed(102 + i));
  }
}

TEST_CASE("prefilter: of what was asked together, only what was charged is given back") {
  Scene scene;
  scene.others(8, Operation::take, "b");
  REQUIRE(scene.prefilter.ask_together(pair_of(scene, 4, 101)));
  scene.sink.expired[101] = scene.sink.expired[102] = Fate::refused_meanwhile;
  CHECK_FALSE(scene.store.is_waiting(scene.store.calls[0].questions[0].ticket));
  // a would pass and answers as a peek, since b does not.
  CHECK(scene.store.answer() == 0);
  REQUIRE(scene.prefilter.ask_together(pair_of(scene, 2, 103)));
  scene.sink.expired[103] = Fate::refused_meanwhile;
  scene.sink.expired[104] = Fate::allowed_meanwhile;
  CHECK(scene.store.answer() == 2);
}

TEST_CASE("prefilter: what the store cannot ask together was not asked, and leaves no trace") {
  Scene scene;
  scene.store.can_ask_together = false;
  for (int i = 0; i < 3; ++i) CHECK_FALSE(scene.prefilter.ask_together(pair_of(scene, 1, 101)));
  scene.store.can_ask_together = true;
  REQUIRE(scene.prefilter.ask_together(pair_of(scene, 1, 101)));
  // The same two places every time.
  for (const SharedAsked& asked : scene.store.calls[0].questions)
    CHECK((asked.ticket & ~(std::uint64_t{1} << 63)) < 2);
  CHECK(scene.store.answer() == 0);
  CHECK(scene.passed(101));
  CHECK(scene.passed(102));
  CHECK(scene.sink.answers.size() == 2);
}

TEST_CASE("prefilter: a reset forgets what is known once it is done, whether or not it worked") {
  Scene scene;
  scene.limit = bucket(1, 1min, 10);
  static_cast<void>(scene.settled({.cost = 10}));
  const store::Question question{Operation::take, scene.limit.get(), scene.kTag, "user", 1, 0, scene.now};
  std::optional<bool> done;
  scene.prefilter.reset(question, [&](bool is_forgotten) { done = is_forgotten; });
  CHECK_FALSE(done.has_value());
  CHECK(scene.ask().status == Status::decided);
  scene.store.answer();
  CHECK(done == true);
  CHECK(scene.settled({.cost = 10}).decision.verdict == Verdict::ok);

  CHECK(scene.ask().status == Status::decided);
  scene.prefilter.reset(question, [&](bool is_forgotten) { done = is_forgotten; });
  scene.store.lose_connection();
  scene.store.is_up = true;
  scene.store.epoch -= 1;  // all that dropped what was known is the reset
  scene.pass(1ms);
  CHECK(done == false);
  CHECK(scene.ask().status == Status::promised);
}

TEST_CASE("prefilter: a reset ends a hold") {
  Scene scene({.hold = 500ms});
  static_cast<void>(scene.settled());
  ask_in_vain(scene);
  scene.pass(100ms);
  ask_in_vain(scene);
  scene.pass(100ms);
  CHECK(scene.ask().status == Status::decided);
  const store::Question question{Operation::take, scene.limit.get(), scene.kTag, "user", 1, 0, scene.now};
  scene.prefilter.reset(question, [](bool) {});
  scene.store.answer();
  CHECK(scene.settled({.cost = 10}).decision.verdict == Verdict::ok);
}

// A scene with a key so hot that a lease begins.
struct LeasedScene : Scene {
  LeasedScene() {
    limit = bucket(1'000'000, 1s, 1'000'000);
    for (int turn = 0; turn < 3; ++turn) {
      for (int i = 0; i < 50; ++i) static_cast<void>(ask_leased());
      flush();
      pass(1ms);
      while (!store.calls.empty() && metric("leases") == 0) store.answer();
      if (metric("leases") > 0) break;
    }
    REQUIRE(metric("leases") == 1);
    flush();
  }

  Answer ask_leased() {
    ++last;
    return prefilter.ask({Operation::take, limit.get(), kTagText, "user", 1, last, now + 20ms, 1000}, now);
  }
};

TEST_CASE("prefilter: a lease that the store does not answer ends, and the key goes on") {
  LeasedScene scene;
  scene.store.lose_connection();
  scene.flush();
  CHECK(scene.metric("leases") == 0);
  scene.store.is_up = true;
  CHECK(scene.ask_leased().status == Status::promised);
  const std::uint64_t ticket = scene.last;
  scene.settle();
  CHECK(scene.passed(ticket));
}

TEST_CASE("prefilter: what is left of a lease goes back to nobody who may not have charged it") {
  LeasedScene scene;
  scene.settle();
  CHECK(scene.ask_leased().is_local);
  const auto leased = scene.metric("leased_total"), granted = scene.metric("leased_grants_total");
  REQUIRE(leased > granted);

  SUBCASE("a server that took the place of the one that did, if the lease runs out") {
    ++scene.store.epoch;
    scene.pass(1500ms);
    scene.flush();
  }
  SUBCASE("or if the key is asked for again, which the lease grants no more") {
    ++scene.store.epoch;
    scene.pass(1ms);
    CHECK(scene.ask_leased().status == Status::promised);
  }
  SUBCASE("or if the agent stops") {
    ++scene.store.epoch;
    scene.prefilter.end_leases(scene.now);
  }
  SUBCASE("nobody, while it is out of reach") {
    scene.store.lose_connection();
    scene.prefilter.end_leases(scene.now);
  }
  CHECK(scene.metric("leased_forfeited_total") == leased - granted);
  CHECK(scene.metric("leased_given_back_total") == 0);
  CHECK(scene.metric("leases") == 0);
}

}  // namespace
}  // namespace allowd::prefilter
