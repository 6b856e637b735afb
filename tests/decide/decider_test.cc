// SPDX-License-Identifier: MIT
#include "agent/decide/decider.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/fake_store.h"
#include "tests/support/printing.h"

namespace allowd::decide {
namespace {

using namespace std::chrono_literals;
using limiter::Micros;
using limiter::Operation;
using protocol::Decision;
using protocol::ErrorCode;
using protocol::Query;
using protocol::Source;
using protocol::Verdict;
using store::Answer;
using testing::FakeStore;
using Fate = store::AnswerSink::Fate;
using Kind = Outcome::Kind;

constexpr SteadyTime at(Micros since_start) { return SteadyTime{since_start}; }

class FakeAsker final : public Asker {
 public:
  std::vector<std::pair<std::uint64_t, Decision>> decisions;
  std::function<void(std::uint64_t)> on_each;

  void on_decision(std::uint64_t msgid, const Decision& decision) override {
    decisions.emplace_back(msgid, decision);
    if (on_each) on_each(msgid);
  }
};

const char* const kConfig = R"(
  [agent]
  deadline = "20ms"
  [limits.open]
  rate = "10/s"
  [limits.closed]
  rate = "10/s"
  on_failure = "deny"
  [limits.patient]
  rate = "10/s"
  deadline = "400d"
)";

protocol::InlineLimit inline_limit(std::string_view name, std::string_view rate,
                                   std::optional<std::int64_t> burst, std::string_view encoded) {
  protocol::InlineLimit limit;
  limit.name = name;
  limit.encoded = encoded;
  limit.tiers[0].rate = rate;
  limit.tiers[0].burst = burst;
  return limit;
}

// A decider over a store that is not local, unless the test says so.
struct Scene {
  explicit Scene(bool is_local = false) {
    fake.local = is_local;
    host.local = true;
    host.mode = FakeStore::Mode::grant;
    decider.emplace(fake, host, table, registry);
  }

  Query query(std::string_view limit, std::int64_t cost = 1) const {
    Query made;
    made.limit = limit;
    made.key = "user-1";
    made.cost = cost;
    return made;
  }
  Outcome ask(const Query& made, SteadyTime now, std::uint64_t msgid = 1,
              Operation operation = Operation::take) {
    return decider->ask(operation, made, now, asker, msgid);
  }
  Outcome ask(std::string_view limit, SteadyTime now, std::uint64_t msgid = 1) {
    return ask(query(limit), now, msgid);
  }
  double metric(std::string_view name) const {
    std::vector<stats::Metric> metrics;
    decider->collect(metrics);
    const auto found =
        std::find_if(metrics.begin(), metrics.end(), [&](const auto& each) { return each.name == name; });
    REQUIRE(found != metrics.end());
    return found->value;
  }
  std::uint64_t counted(std::string_view limit, Verdict verdict, Source source, std::string_view tier = "") {
    return registry.decisions_of(limit, tier).count(verdict, source);
  }

  config::Config config = *config::parse_config(kConfig, "f");
  stats::Registry registry;
  LimitTable table{config, registry};
  FakeStore fake;
  FakeStore host;
  FakeAsker asker;
  std::optional<Decider> decider;
};

const Decision kPolicyAllows{.allowed = true,
                             .limit = 10,
                             .remaining = 10,
                             .retry_after_us = 0,
                             .reset_after_us = 0,
                             .verdict = Verdict::ok,
                             .source = Source::fallback,
                             .tier = "",
                             .window_us = 1'000'000,
                             .more_after_us = 0};

Decision policy_denies(std::int64_t retry_after_us) {
  return {.allowed = false,
          .limit = 10,
          .remaining = 0,
          .retry_after_us = retry_after_us,
          .reset_after_us = 0,
          .verdict = Verdict::unavailable,
          .source = Source::fallback,
          .tier = "",
          .window_us = 1'000'000,
          .more_after_us = 0};
}

TEST_CASE("decider: a question goes to the store as the query says, and its answer to the asker") {
  Scene scene;
  Query query = scene.query("open", 3);
  query.key = std::string_view("a\0b", 3);
  CHECK(scene.ask(query, at(1s), 77).kind == Kind::deferred);
  REQUIRE(scene.fake.asked.size() == 1);
  const auto asked = scene.fake.asked[0];
  CHECK(asked.operation == Operation::take);
  CHECK(asked.limit_tag == "n4:open:");
  CHECK(asked.key == std::string("a\0b", 3));
  const Limit& limit = **scene.table.find("open");
  CHECK(asked.hash == limit.hash_of(asked.key).salted(limit.base().salt));
  CHECK(asked.cost == 3);
  CHECK(asked.at == at(1s));
  CHECK(scene.fake.is_waiting(asked));
  CHECK(scene.decider->open_queries() == 1);
  CHECK(scene.asker.decisions.empty());

  CHECK(scene.fake.grant(asked, at(1s + 300us)) == Fate::delivered);
  REQUIRE(scene.asker.decisions.size() == 1);
  CHECK(scene.asker.decisions[0].first == 77);
  CHECK(scene.asker.decisions[0].second == Decision{.allowed = true,
                                                    .limit = 10,
                                                    .remaining = 7,
                                                    .retry_after_us = 0,
                                                    .reset_after_us = 300'000,
                                                    .verdict = Verdict::ok,
                                                    .source = Source::store,
                                                    .tier = "",
                                                    .window_us = 1'000'000,
                                                    .more_after_us = 100'000});
  CHECK(scene.decider->open_queries() == 0);
  CHECK_FALSE(scene.fake.is_waiting(asked));
  scene.decider->expire(at(1h));
  CHECK(scene.asker.decisions.size() == 1);
}

TEST_CASE("decider: a refusal by the store is a decision like any other") {
  Scene scene;
  static_cast<void>(scene.ask(scene.query("open", 4), at(1s)));
  const auto asked = scene.fake.asked[0];
  CHECK(scene.fake.answer(asked, scene.fake.decided(asked, 900'000, limiter::Verdict::limited), at(1s)) ==
        Fate::delivered);
  const Decision& decision = scene.asker.decisions.at(0).second;
  CHECK_FALSE(decision.allowed);
  CHECK(decision.verdict == Verdict::limited);
  CHECK(decision.retry_after_us == 300'000);
  CHECK(decision.remaining == 1);
}

TEST_CASE("decider: an answer that a store gives at once is the outcome, and the asker is not called") {
  Scene scene;
  scene.fake.mode = FakeStore::Mode::grant;
  const Outcome outcome = scene.ask("open", at(1s));
  CHECK(outcome.kind == Kind::decided);
  CHECK(outcome.decision.source == Source::store);
  CHECK(outcome.decision.remaining == 9);
  CHECK(scene.decider->open_queries() == 0);
  scene.decider->expire(at(1h));
  CHECK(scene.asker.decisions.empty());
}

TEST_CASE("decider: a local store decides at once, whatever the deadline, and says so") {
  Scene scene(true);
  Query query = scene.query("closed");
  query.deadline_us = 0;
  const Outcome outcome = scene.ask(query, at(1s));
  CHECK(outcome.kind == Kind::decided);
  CHECK(outcome.decision.source == Source::local);
  CHECK(outcome.decision.tier.empty());
  CHECK(scene.counted("closed", Verdict::ok, Source::local) == 1);
}

TEST_CASE("decider: what the overflow bucket decided has its own tier and counters") {
  Scene scene(true);
  scene.fake.by_overflow = true;
  const Outcome outcome = scene.ask("open", at(1s));
  CHECK(outcome.decision.tier == "overflow");
  CHECK(scene.counted("open", Verdict::ok, Source::local, "overflow") == 1);
  CHECK(scene.counted("open", Verdict::ok, Source::local) == 0);
}

TEST_CASE("decider: a local store is asked about costs that can never pass, since it knows the true level") {
  Scene scene(true);
  CHECK(scene.ask(scene.query("open", 11), at(1s)).decision.verdict == Verdict::never);
  CHECK(scene.fake.asked.size() == 1);
}

TEST_CASE("decider: a cost that can never pass costs no trip to the store") {
  Scene scene;
  for (const Operation operation : {Operation::take, Operation::peek}) {
    const Outcome outcome = scene.ask(scene.query("closed", 11), at(1s), 1, operation);
    CHECK(outcome.kind == Kind::decided);
    CHECK(outcome.decision == Decision{.allowed = false,
                                       .limit = 10,
                                       .remaining = 10,
                                       .retry_after_us = protocol::kNever,
                                       .reset_after_us = 0,
                                       .verdict = Verdict::never,
                                       .source = Source::local,
                                       .tier = "",
                                       .window_us = 1'000'000,
                                       .more_after_us = 0});
  }
  CHECK(scene.ask(scene.query("open", INT64_MAX), at(1s)).decision.verdict == Verdict::never);
  CHECK(scene.fake.asked.empty());
}

TEST_CASE("decider: a cost that can never pass stays never when the policy allows and the store fails") {
  Scene scene;
  scene.fake.mode = FakeStore::Mode::fail;
  scene.fake.available = false;
  CHECK(scene.ask(scene.query("open", 11), at(1s)).decision.verdict == Verdict::never);
  Query query = scene.query("open", 11);
  query.deadline_us = 0;
  CHECK(scene.ask(query, at(1s)).decision.verdict == Verdict::never);
}

TEST_CASE("decider: a limit that nobody configured is refused by its quoted name") {
  Scene scene;
  const Outcome outcome = scene.ask(scene.query("no\nsuch \"limit\""), at(1s));
  CHECK(outcome.kind == Kind::refused);
  CHECK(name_of(outcome.code) == "unknown_limit");
  CHECK(outcome.reason == R"(no limit is named "no\x0asuch \"limit\"")");
  CHECK(scene.fake.asked.empty());
}

TEST_CASE("decider: a limit of the application is asked under its own tag and counted as inline") {
  Scene scene;
  Query query = scene.query("");
  query.defined_inline = inline_limit("open", "5/s", 7, "the map's bytes");
  CHECK(scene.ask(query, at(1s)).kind == Kind::deferred);
  const auto asked = scene.fake.asked.at(0);
  CHECK(asked.limit_tag == "i4:open:");
  CHECK(asked.definition->bucket().burst() == 7);
  scene.fake.grant(asked, at(1s));
  CHECK(scene.asker.decisions.at(0).second.limit == 7);
  CHECK(scene.counted("inline", Verdict::ok, Source::store) == 1);
  CHECK(scene.counted("open", Verdict::ok, Source::store) == 0);
}

TEST_CASE("decider: a limit of the application that is wrong is a bad request") {
  Scene scene;
  Query query = scene.query("");
  query.defined_inline = inline_limit("n", "fast", std::nullopt, "bytes");
  const Outcome outcome = scene.ask(query, at(1s));
  CHECK(outcome.kind == Kind::refused);
  CHECK(name_of(outcome.code) == "bad_request");
  CHECK(outcome.reason.starts_with("limit.rate: "));
}

TEST_CASE("decider: a query in flight keeps its definition when a thousand others push it out of the cache") {
  Scene scene;
  Query query = scene.query("");
  query.defined_inline = inline_limit("first", "5/s", 7, "first");
  static_cast<void>(scene.ask(query, at(1s)));
  scene.fake.mode = FakeStore::Mode::grant;
  for (std::size_t i = 0; i <= LimitTable::kMaxInline; ++i) {
    const std::string bytes = std::to_string(i);
    Query other = scene.query("");
    other.defined_inline = inline_limit("other", "9/s", 9, bytes);
    static_cast<void>(scene.ask(other, at(1s)));
  }
  scene.decider->expire(at(2s));
  REQUIRE(scene.asker.decisions.size() == 1);
  CHECK(scene.asker.decisions[0].second.limit == 7);
  CHECK(scene.asker.decisions[0].second.source == Source::fallback);
}

TEST_CASE("decider: when the store fails at once the policy answers at once") {
  Scene scene;
  scene.fake.mode = FakeStore::Mode::fail;
  scene.fake.probe_in = 123ms;
  const Outcome open = scene.ask("open", at(1s));
  CHECK(open.kind == Kind::decided);
  CHECK(open.decision == kPolicyAllows);
  const Outcome closed = scene.ask("closed", at(1s));
  CHECK(closed.kind == Kind::decided);
  CHECK(closed.decision == policy_denies(123'000));
  CHECK(scene.decider->open_queries() == 0);
  CHECK(scene.counted("open", Verdict::ok, Source::fallback) == 1);
  CHECK(scene.counted("closed", Verdict::unavailable, Source::fallback) == 1);
}

TEST_CASE("decider: when the store fails later the policy answers then, before the deadline") {
  Scene scene;
  static_cast<void>(scene.ask("open", at(1s), 1));
  static_cast<void>(scene.ask("closed", at(1s), 2));
  scene.fake.probe_in = 5ms;
  CHECK(scene.fake.fail(scene.fake.asked[0], at(1s + 1ms)) == Fate::delivered);
  CHECK(scene.fake.fail(scene.fake.asked[1], at(1s + 1ms)) == Fate::delivered);
  REQUIRE(scene.asker.decisions.size() == 2);
  CHECK(scene.asker.decisions[0] == std::pair<std::uint64_t, Decision>{1, kPolicyAllows});
  CHECK(scene.asker.decisions[1] == std::pair<std::uint64_t, Decision>{2, policy_denies(5000)});
  CHECK(scene.metric("late_answers_total") == 0);
  CHECK(scene.metric("queries_expired_total") == 0);
}

TEST_CASE("decider: a refusal by policy says when the shard of its key is tried again") {
  Scene scene;
  scene.fake.probe_in_of = {{1, 10ms}, {2, 20ms}, {3, 30ms}, {4, 40ms}};
  const auto ask = [&](std::string_view key, std::optional<std::int64_t> deadline_us = std::nullopt) {
    Query query = scene.query("closed");
    query.key = key;
    query.deadline_us = deadline_us;
    return scene.ask(query, at(1s), key.size());
  };
  CHECK(ask("1", 0).decision == policy_denies(10'000));
  static_cast<void>(ask("22"));
  static_cast<void>(ask("333"));
  CHECK(scene.fake.fail(scene.fake.asked[0], at(1s + 1ms)) == Fate::delivered);
  scene.decider->expire(at(2s));
  REQUIRE(scene.asker.decisions.size() == 2);
  CHECK(scene.asker.decisions[0] == std::pair<std::uint64_t, Decision>{2, policy_denies(20'000)});
  CHECK(scene.asker.decisions[1] == std::pair<std::uint64_t, Decision>{3, policy_denies(30'000)});
  scene.fake.mode = FakeStore::Mode::fail;
  CHECK(ask("4444").decision == policy_denies(40'000));
}

TEST_CASE("decider: a query is answered by its policy when its deadline has come, not a microsecond before") {
  Scene scene;
  static_cast<void>(scene.ask("open", at(1s), 1));
  static_cast<void>(scene.ask("closed", at(1s), 2));
  CHECK(scene.decider->next_deadline() == at(1s + 20ms));
  scene.decider->expire(at(1s + 20ms - 1us));
  CHECK(scene.asker.decisions.empty());
  scene.fake.probe_in = 7ms;
  scene.decider->expire(at(1s + 20ms));
  REQUIRE(scene.asker.decisions.size() == 2);
  std::map<std::uint64_t, Decision> by_msgid(scene.asker.decisions.begin(), scene.asker.decisions.end());
  CHECK(by_msgid.at(1) == kPolicyAllows);
  CHECK(by_msgid.at(2) == policy_denies(7000));
  CHECK_FALSE(scene.decider->next_deadline().has_value());
  CHECK(scene.metric("queries_expired_total") == 2);
  CHECK(scene.metric("queries_open") == 0);
}

TEST_CASE("decider: the store learns who did not wait for it any longer, and for how long") {
  Scene scene;
  scene.ask("open", at(1s));
  scene.decider->expire(at(1s + 19ms));
  CHECK(scene.fake.expired.empty());
  scene.decider->expire(at(1s + 25ms));
  REQUIRE(scene.fake.expired.size() == 1);
  CHECK(scene.fake.expired[0] == std::pair(std::string_view("user-1").size(), Micros{25ms}));
}

TEST_CASE("decider: the query's own deadline goes before its limit's, and neither beyond a minute") {
  Scene scene;
  Query query = scene.query("open");
  query.deadline_us = 500;
  static_cast<void>(scene.ask(query, at(1s)));
  CHECK(scene.decider->next_deadline() == at(1s + 500us));
  scene.decider->expire(at(1s + 500us));

  query.deadline_us = INT64_MAX;
  static_cast<void>(scene.ask(query, at(2s)));
  CHECK(scene.decider->next_deadline() == at(2s + 1min));
  scene.decider->expire(at(2s + 1min));

  static_cast<void>(scene.ask("patient", at(3s)));
  CHECK(scene.decider->next_deadline() == at(3s + 1min));
}

TEST_CASE("decider: a deadline of 0 means not to ask the store at all") {
  Scene scene;
  scene.fake.mode = FakeStore::Mode::grant;
  for (const auto& [limit, expected] : std::vector<std::pair<std::string, Decision>>{
           {"open", kPolicyAllows}, {"closed", policy_denies(250'000)}}) {
    Query query = scene.query(limit);
    query.deadline_us = 0;
    const Outcome outcome = scene.ask(query, at(1s));
    CHECK(outcome.kind == Kind::decided);
    CHECK(outcome.decision == expected);
  }
  CHECK(scene.fake.asked.empty());
}

TEST_CASE("decider: when the agent stops, all that is open is answered whatever its deadline") {
  Scene scene;
  static_cast<void>(scene.ask("open", at(1s), 1));
  static_cast<void>(scene.ask("patient", at(1s), 2));
  static_cast<void>(scene.ask("closed", at(1s), 3));
  scene.decider->expire_all(at(1s + 1us));
  CHECK(scene.decider->open_queries() == 0);
  std::map<std::uint64_t, Decision> by_msgid(scene.asker.decisions.begin(), scene.asker.decisions.end());
  REQUIRE(by_msgid.size() == 3);
  CHECK(by_msgid.at(1) == kPolicyAllows);
  CHECK(by_msgid.at(2) == kPolicyAllows);
  CHECK(by_msgid.at(3) == policy_denies(250'000));
  CHECK(scene.fake.grant(scene.fake.asked[2], at(2s)) == Fate::refused_meanwhile);
  scene.decider->expire_all(at(2s));
  CHECK(scene.asker.decisions.size() == 3);
}

TEST_CASE("decider: a grant that comes too late is told what its asker was told") {
  Scene scene;
  static_cast<void>(scene.ask("open", at(1s), 1));
  static_cast<void>(scene.ask("closed", at(1s), 2));
  const auto open = scene.fake.asked[0], closed = scene.fake.asked[1];
  scene.decider->expire(at(2s));
  CHECK(scene.asker.decisions.size() == 2);
  CHECK_FALSE(scene.fake.is_waiting(open));
  CHECK_FALSE(scene.fake.is_waiting(closed));
  CHECK(scene.fake.grant(open, at(3s)) == Fate::allowed_meanwhile);
  CHECK(scene.fake.grant(closed, at(3s)) == Fate::refused_meanwhile);
  CHECK(scene.asker.decisions.size() == 2);
  CHECK(scene.metric("late_answers_total") == 2);
}

TEST_CASE("decider: a failure that comes too late is no late answer") {
  Scene scene;
  static_cast<void>(scene.ask("closed", at(1s)));
  scene.decider->expire(at(2s));
  CHECK(scene.fake.fail(scene.fake.asked[0], at(3s)) == Fate::refused_meanwhile);
  CHECK(scene.metric("late_answers_total") == 0);
  CHECK(scene.asker.decisions.size() == 1);
}

TEST_CASE("decider: a late answer never reaches the query that came after") {
  Scene scene;
  static_cast<void>(scene.ask("open", at(1s), 1));
  scene.decider->expire(at(2s));
  static_cast<void>(scene.ask("open", at(2s), 2));
  const auto late = scene.fake.asked[0], current = scene.fake.asked[1];
  CHECK(late.ticket != current.ticket);
  CHECK(scene.fake.grant(late, at(2s)) == Fate::allowed_meanwhile);
  CHECK(scene.fake.is_waiting(current));
  static_cast<void>(scene.ask("open", at(2s), 3));  // may take the place that has become free
  CHECK_FALSE(scene.fake.is_waiting(late));
  CHECK(scene.fake.grant(scene.fake.asked[2], at(2s)) == Fate::delivered);
  CHECK(scene.fake.grant(current, at(2s)) == Fate::delivered);
  std::vector<std::uint64_t> ids;
  for (const auto& [msgid, decision] : scene.asker.decisions) ids.push_back(msgid);
  CHECK(ids == std::vector<std::uint64_t>{1, 3, 2});
}

TEST_CASE("decider: an asker may ask again from inside its answer, however it came") {
  Scene scene;
  int again = 0;
  scene.asker.on_each = [&](std::uint64_t) {
    if (++again > 200) return;
    static_cast<void>(scene.ask("open", at(1s), 1000 + static_cast<std::uint64_t>(again)));
    static_cast<void>(scene.ask("closed", at(1s), 5000 + static_cast<std::uint64_t>(again)));
  };
  static_cast<void>(scene.ask("open", at(1s), 1));
  scene.fake.grant(scene.fake.asked[0], at(1s));
  CHECK(scene.decider->open_queries() == 2);
  scene.decider->expire(at(1h));
  CHECK(scene.decider->open_queries() == 0);
  CHECK(scene.asker.decisions.size() == 1 + 2 * 200);
}

TEST_CASE("decider: a peek asks the store to peek") {
  Scene scene;
  static_cast<void>(scene.ask(scene.query("open", 0), at(1s), 1, Operation::peek));
  CHECK(scene.fake.asked.at(0).operation == Operation::peek);
  CHECK(scene.fake.asked.at(0).cost == 0);
}

TEST_CASE("decider: time from asking to answering is recorded by who decided") {
  Scene scene;
  static_cast<void>(scene.ask("open", at(1s), 1));
  static_cast<void>(scene.ask("open", at(1s), 2));
  scene.fake.grant(scene.fake.asked[0], at(1s + 500us));
  scene.decider->expire(at(1s + 25ms));
  CHECK(scene.registry.latency(Source::store).count() == 1);
  CHECK(scene.registry.latency(Source::store).max() == 500);
  CHECK(scene.registry.latency(Source::fallback).count() == 1);
  CHECK(scene.registry.latency(Source::fallback).max() == 25'000);

  static_cast<void>(scene.ask(scene.query("open", 11), at(2s)));
  static_cast<void>(scene.ask(scene.query("open", 11), at(2s)));
  CHECK(scene.registry.latency(Source::local).count() == 0);
  scene.decider->end_turn(at(2s), at(2s + 40us));
  CHECK(scene.registry.latency(Source::local).count() == 2);
  CHECK(scene.registry.latency(Source::local).max() == 40);
  scene.decider->end_turn(at(3s), at(4s));
  CHECK(scene.registry.latency(Source::local).count() == 2);
}

TEST_CASE("decider: whatever the store does, every query is answered exactly once and in time") {
  Scene scene;
  std::mt19937_64 random(8);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  std::map<std::uint64_t, int> answers;
  std::map<std::uint64_t, SteadyTime> deadline_of;
  SteadyTime now = at(1s);
  scene.asker.on_each = [&](std::uint64_t msgid) {
    ++answers[msgid];
    CHECK(now <= deadline_of.at(msgid) + 1ms);  // the turns below are 1 ms apart
  };
  std::vector<FakeStore::Asked> unsettled;
  std::uint64_t next = 0;
  for (int turn = 0; turn < 5000; ++turn) {
    now += Micros{static_cast<std::int64_t>(below(1000))};
    for (std::uint64_t i = below(4); i > 0; --i) {
      const std::uint64_t msgid = next++;
      Query query = scene.query(below(2) == 0 ? "open" : "closed", static_cast<std::int64_t>(below(12)));
      if (below(2) == 0) query.deadline_us = static_cast<std::int64_t>(below(10'000));
      deadline_of[msgid] = now + Micros{query.deadline_us.value_or(20'000)};
      scene.fake.mode = static_cast<FakeStore::Mode>(below(8) < 6 ? 0 : 1 + below(2));
      const std::size_t before = scene.fake.asked.size();
      const Outcome outcome = scene.ask(query, now, msgid);
      if (outcome.kind == Kind::decided) ++answers[msgid];
      if (outcome.kind == Kind::deferred) unsettled.push_back(scene.fake.asked.at(before));
      REQUIRE(outcome.kind != Kind::refused);
    }
    for (std::uint64_t i = below(4); i > 0 && !unsettled.empty(); --i) {
      const std::size_t which = below(unsettled.size());
      const auto asked = unsettled[which];
      unsettled.erase(unsettled.begin() + static_cast<std::ptrdiff_t>(which));
      const bool was_waiting = scene.fake.is_waiting(asked);
      const Fate fate = below(3) == 0 ? scene.fake.fail(asked, now) : scene.fake.grant(asked, now);
      CHECK((fate == Fate::delivered) == was_waiting);
    }
    scene.decider->expire(now);
  }
  now += 1min;
  scene.asker.on_each = [&](std::uint64_t msgid) { ++answers[msgid]; };
  scene.decider->expire(now);
  for (const auto& asked : unsettled) CHECK(scene.fake.grant(asked, now) != Fate::delivered);
  CHECK(scene.decider->open_queries() == 0);
  CHECK(answers.size() == next);
  CHECK(std::all_of(answers.begin(), answers.end(), [](const auto& entry) { return entry.second == 1; }));
}

TEST_CASE("decider: a reset is done once, when every kind is settled, and fails if what counts now is not") {
  for (const bool is_own_forgotten : {true, false}) {
    for (const bool is_other_forgotten : {true, false}) {
      Scene scene;
      scene.fake.resets_wait = true;
      std::vector<bool> done;
      scene.decider->reset("open", "k", [&](const Failure& problem) { done.push_back(!problem); });
      CHECK(scene.fake.resets == std::vector<std::string>{"n4:open:k", "nt4:open:k"});
      scene.fake.waiting_resets.at(1)(is_other_forgotten);
      CHECK(done.empty());
      scene.fake.waiting_resets.at(0)(is_own_forgotten);
      CHECK(done == std::vector<bool>{is_own_forgotten});
    }
  }
}

}  // namespace
}  // namespace allowd::decide
