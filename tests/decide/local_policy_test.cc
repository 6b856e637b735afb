// SPDX-License-Identifier: MIT
//
// The policy `local` as queries meet it: a decider over a store that does not answer, and then does.
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "agent/decide/decider.h"
#include "agent/decide/many.h"
#include "tests/support/fake_store.h"
#include "tests/support/printing.h"

namespace allowd::decide {
namespace {

using namespace std::chrono_literals;
using limiter::Micros;
using limiter::Operation;
using protocol::Decision;
using protocol::Query;
using protocol::Source;
using protocol::Verdict;
using testing::FakeStore;
using Kind = Outcome::Kind;
using Mode = FakeStore::Mode;

constexpr SteadyTime at(Micros since_start) { return SteadyTime{since_start}; }

const char* const kConfig = R"(
  [limits.api]
  rate = "10/h"
  on_failure = "local"
  refund = true
  [limits.fixed]
  rate = "10/h"
  on_failure = "local"
  local_share = 5
  [limits.watched]
  rate = "10/h"
  on_failure = "local"
  shadow = true
  [limits.tiered]
  tiers = [ { name = "s", rate = "4/h" }, { name = "d", rate = "100/day", algorithm = "fixed_window" } ]
  on_failure = "local"
  [limits.flooded]
  rate = "10/h"
  on_failure = "local"
  max_new_keys_per_second = 1
  overflow = { rate = "6/h" }
  [limits.parted]
  rate = "10/h"
  split = 2
  on_failure = "local"
)";

struct FakeAsker final : Asker {
  std::vector<Decision> decisions;
  void on_decision(std::uint64_t, const Decision& decision) override { decisions.push_back(decision); }
};

struct Scene {
  Scene() {
    fake.mode = Mode::fail;
    fake.known_agents = 2;
    host.local = true;
    decider.emplace(fake, host, table, registry);
  }
  Decision ask(std::string_view limit, std::int64_t cost = 1, Operation operation = Operation::take,
               std::string_view key = "k") {
    Query query;
    query.limit = limit;
    query.key = key;
    query.cost = cost;
    const Outcome outcome = decider->ask(operation, query, now, asker, 1);
    REQUIRE(outcome.kind == Kind::decided);
    return outcome.decision;
  }
  void post(std::string_view limit, std::int64_t cost = 1) {
    Query query;
    query.limit = limit;
    query.key = "k";
    query.cost = cost;
    REQUIRE(decider->ask(Operation::take, query, now, asker, 1).kind == Kind::deferred);
  }
  // Redis is back: questions are asked, and answered when the test says so.
  void come_back() {
    fake.mode = Mode::later;
    fake.probe_in = 1us;
    fake.asked.clear();
  }

  config::Config config = *config::parse_config(kConfig, "f");
  stats::Registry registry;
  LimitTable table{config, registry};
  FakeStore fake;
  FakeStore host;
  FakeAsker asker;
  SteadyTime now = at(10s);
  std::optional<Decider> decider;
};

TEST_CASE("policy local: this host's share decides, ok or limited, as fallback") {
  Scene scene;
  const Decision passed = scene.ask("api", 2);
  CHECK(passed.allowed);
  CHECK(passed.limit == 5);
  CHECK(passed.remaining == 3);
  CHECK(passed.verdict == Verdict::ok);
  CHECK(passed.source == Source::fallback);
  const Decision refused = scene.ask("api", 4);
  CHECK_FALSE(refused.allowed);
  CHECK(refused.verdict == Verdict::limited);
  CHECK(refused.source == Source::fallback);
  // 5 an hour: one more permit in 12 minutes.
  CHECK(refused.retry_after_us == Micros(12min).count());
  CHECK(scene.registry.decisions_of("api", "").count(Verdict::ok, Source::fallback) == 1);
  CHECK(scene.registry.decisions_of("api", "").count(Verdict::limited, Source::fallback) == 1);
}

TEST_CASE("policy local: with an unknown number of agents it is the policy deny, unless one is named") {
  Scene scene;
  scene.fake.known_agents.reset();
  const Decision denied = scene.ask("api");
  CHECK(denied.verdict == Verdict::unavailable);
  CHECK(denied.retry_after_us == scene.fake.probe_in.count());
  CHECK(scene.ask("fixed").remaining == 1);
  scene.fake.known_agents = 10;
  CHECK(scene.ask("fixed").remaining == 0);
}

TEST_CASE(
    "policy local: more than the share is limited until the store is tried again, more than the limit "
    "never") {
  Scene scene;
  const Decision refused = scene.ask("api", 6);
  CHECK(refused.verdict == Verdict::limited);
  CHECK(refused.retry_after_us == scene.fake.probe_in.count());
  CHECK(scene.ask("api", 11).verdict == Verdict::never);
  CHECK(scene.ask("api").remaining == 4);
}

TEST_CASE("policy local: peeks, refunds, forces and cost 0 mean the share") {
  Scene scene;
  CHECK(scene.ask("api", 3, Operation::peek).remaining == 5);
  CHECK(scene.ask("api", 6, Operation::peek).verdict == Verdict::limited);
  CHECK(scene.ask("api", 9, Operation::force).allowed);
  CHECK(scene.ask("api", 1, Operation::peek).verdict == Verdict::limited);
  CHECK(scene.ask("api", 0).allowed);
  CHECK(scene.ask("api", 2, Operation::refund).remaining == 2);
  CHECK(scene.ask("api", 2).remaining == 0);
}

TEST_CASE("policy local: a limit in shadow says what its share would refuse, and lets it pass") {
  Scene scene;
  CHECK(scene.ask("watched", 5).verdict == Verdict::ok);
  for (const std::int64_t cost : {1, 6}) {
    const Decision watched = scene.ask("watched", cost);
    CHECK(watched.allowed);
    CHECK(watched.verdict == Verdict::shadow);
    CHECK(watched.retry_after_us > 0);
  }
}

TEST_CASE("policy local: tiers are shared out each, and named") {
  Scene scene;
  CHECK(scene.ask("tiered", 2).tier == "s");
  const Decision refused = scene.ask("tiered");
  CHECK(refused.verdict == Verdict::limited);
  CHECK(refused.tier == "s");
  CHECK(refused.limit == 2);
}

TEST_CASE(
    "policy local: a query whose deadline has passed is decided by the share, and its late grant is not "
    "debited") {
  Scene scene;
  scene.fake.mode = Mode::later;
  scene.post("api", 2);
  scene.now += 20ms;
  scene.decider->expire(scene.now);
  REQUIRE(scene.asker.decisions.size() == 1);
  CHECK(scene.asker.decisions[0].remaining == 3);
  CHECK(scene.fake.grant(scene.fake.asked[0], scene.now) == store::AnswerSink::Fate::allowed_meanwhile);
  scene.come_back();
  scene.post("api");
  REQUIRE(scene.fake.asked.size() == 1);
  CHECK(scene.fake.asked[0].operation == Operation::take);
}

TEST_CASE("policy local: a late grant to somebody who was refused pays for what the share let through") {
  Scene scene;
  scene.fake.mode = Mode::later;
  for (const std::int64_t cost : {3, 4, 2, 2}) {
    scene.post("api", cost);
    scene.now += 1us;
  }
  scene.now += 20ms;
  scene.decider->expire(scene.now);
  REQUIRE(scene.asker.decisions.size() == 4);
  const bool passed[] = {true, false, true, false};  // 3 and 2 of the share's 5
  for (std::size_t i = 0; i < 4; ++i) CHECK(scene.asker.decisions[i].allowed == passed[i]);
  using Fate = store::AnswerSink::Fate;
  const auto asked = scene.fake.asked;
  CHECK(scene.fake.grant(asked[1], scene.now) == Fate::allowed_meanwhile);  // pays for 4 of 5
  CHECK(scene.fake.grant(asked[3], scene.now) == Fate::refused_meanwhile);
  scene.fake.fail(asked[0], scene.now);
  scene.fake.fail(asked[2], scene.now);
  scene.come_back();
  CHECK(scene.ask("api").verdict == Verdict::limited);  // held to its share, of which nothing is left
  REQUIRE(scene.fake.asked.size() == 1);
  CHECK(scene.fake.asked[0].operation == Operation::force);
  CHECK(scene.fake.asked[0].cost == 1);
}

TEST_CASE("policy local: what was used is debited before the key is asked about again, once") {
  Scene scene;
  CHECK(scene.ask("api", 2).verdict == Verdict::ok);
  CHECK(scene.ask("api", 1, Operation::take, "other").verdict == Verdict::ok);
  scene.come_back();
  scene.post("api");
  scene.post("api");
  REQUIRE(scene.fake.asked.size() == 3);
  const FakeStore::Asked debit = scene.fake.asked[0];
  CHECK(debit.operation == Operation::force);
  CHECK(debit.cost == 2);
  CHECK(debit.key == "k");
  CHECK(debit.limit_tag == scene.fake.asked[1].limit_tag);
  CHECK(*debit.definition == *scene.fake.asked[1].definition);
  CHECK(scene.fake.asked[1].operation == Operation::take);
  CHECK(scene.fake.is_waiting(debit));
  CHECK(scene.fake.grant(debit, scene.now) == store::AnswerSink::Fate::delivered);
  CHECK_FALSE(scene.fake.is_waiting(debit));
  CHECK(scene.asker.decisions.empty());
  scene.fake.grant(scene.fake.asked[1], scene.now);
  scene.post("api");
  CHECK(scene.fake.asked.back().operation == Operation::take);
  CHECK(scene.fake.asked.size() == 4);
  // Of the share's 5 all are used now: the rest may be other agents'.
  scene.fake.mode = Mode::fail;
  CHECK(scene.ask("api", 1).verdict == Verdict::limited);
  CHECK(scene.fake.asked.size() == 4);
}

TEST_CASE("policy local: a debit is kept while the store would not be asked at once") {
  Scene scene;
  CHECK(scene.ask("api", 2).verdict == Verdict::ok);
  scene.come_back();
  scene.fake.probe_in = 2us;
  scene.post("api");
  CHECK(scene.fake.asked.size() == 1);
  scene.fake.probe_in = 1us;
  scene.post("api");
  REQUIRE(scene.fake.asked.size() == 3);
  CHECK(scene.fake.asked[1].operation == Operation::force);
  store::Answer unasked;
  unasked.is_unasked = true;
  scene.fake.answer(scene.fake.asked[1], unasked, scene.now);
  scene.post("api");
  REQUIRE(scene.fake.asked.size() == 5);
  CHECK(scene.fake.asked[3].operation == Operation::force);
  // Now nobody knows.
  scene.fake.fail(scene.fake.asked[3], scene.now);
  scene.post("api");
  CHECK(scene.fake.asked.size() == 6);
}

TEST_CASE("policy local: a key that its limit did not admit counts in the share of the overflow") {
  Scene scene;
  scene.fake.mode = Mode::later;
  scene.post("flooded", 2);
  store::Answer failed;
  failed.by_overflow = true;
  scene.fake.answer(scene.fake.asked[0], failed, scene.now);
  REQUIRE(scene.asker.decisions.size() == 1);
  CHECK(scene.asker.decisions[0].tier == kOverflowTier);
  CHECK(scene.asker.decisions[0].limit == 3);
  CHECK(scene.asker.decisions[0].remaining == 1);
  // The share of the key itself is untouched.
  scene.fake.mode = Mode::fail;
  CHECK(scene.ask("flooded").remaining == 4);
  scene.come_back();
  scene.post("flooded");
  REQUIRE(scene.fake.asked.size() == 3);
  CHECK(scene.fake.asked[0].cost == 1);
  CHECK(scene.fake.asked[1].key.empty());
  CHECK(scene.fake.asked[1].cost == 2);
}

TEST_CASE("policy local: a reset forgets what the share has counted") {
  Scene scene;
  CHECK(scene.ask("api", 5).verdict == Verdict::ok);
  scene.decider->reset("api", "k", [](const Failure&) {});
  CHECK(scene.ask("api", 5).verdict == Verdict::ok);
}

TEST_CASE("policy local: an allow_many that is refused gives back what the share had let through") {
  Scene scene;
  CHECK(scene.ask("api", 5, Operation::take, "empty").verdict == Verdict::ok);
  std::vector<Query> items(2);
  items[0].limit = items[1].limit = "api";
  items[0].key = "a";
  items[1].key = "empty";
  items[0].cost = items[1].cost = 2;
  Many many(*scene.decider, [] {});
  REQUIRE(many.start(items, true, scene.now) == Kind::decided);
  CHECK_FALSE(many.decisions()[1].allowed);
  CHECK(scene.ask("api", 0, Operation::take, "a").remaining == 5);
}

TEST_CASE("policy local: each part of a limit has a share of its own, and is charged for it") {
  Scene scene;
  // Of two agents, of five permits each: two.
  for (const int left : {1, 0, 1, 0}) {
    const Decision decision = scene.ask("parted");
    CHECK(decision.verdict == Verdict::ok);
    CHECK(decision.limit == 2);
    CHECK(decision.remaining == static_cast<std::uint64_t>(left));
  }
  CHECK(scene.ask("parted").verdict == Verdict::limited);
  CHECK(scene.ask("parted", 3).verdict == Verdict::limited);
  scene.come_back();
  // Both are held: nothing is asked but what both owe.
  CHECK(scene.ask("parted").verdict == Verdict::limited);
  REQUIRE(scene.fake.asked.size() == 2);
  std::vector<std::uint32_t> parts;
  for (const FakeStore::Asked& debit : scene.fake.asked) {
    CHECK(debit.operation == Operation::force);
    CHECK(debit.cost == 2);
    CHECK(debit.definition->bucket().burst() == 5);
    parts.push_back(debit.first_part);
    scene.fake.grant(debit, scene.now);
  }
  CHECK(parts == std::vector<std::uint32_t>{0, 1});
  // No longer held.
  scene.now += 4s;
  scene.fake.asked.clear();
  scene.post("parted");
  REQUIRE(scene.fake.asked.size() == 1);
  CHECK(scene.fake.asked[0].operation == Operation::take);
}

TEST_CASE("policy local: while some parts answer, only those decide here that do not") {
  Scene scene;
  scene.fake.probe_in_of[1] = 1us;  // the shard of this host's own part
  CHECK(scene.ask("parted").verdict == Verdict::ok);
  CHECK(scene.ask("parted").verdict == Verdict::ok);
  CHECK(scene.ask("parted").verdict == Verdict::limited);
  // Now all do, and yet were late.
  scene.fake.probe_in_of[2] = 1us;
  CHECK(scene.ask("parted").verdict == Verdict::ok);
}

TEST_CASE("policy local: a reset forgets the shares of all parts") {
  Scene scene;
  for (int i = 0; i < 4; ++i) CHECK(scene.ask("parted").verdict == Verdict::ok);
  scene.decider->reset("parted", "k", [](const Failure&) {});
  for (int i = 0; i < 4; ++i) CHECK(scene.ask("parted").verdict == Verdict::ok);
  CHECK(scene.ask("parted").verdict == Verdict::limited);
}

}  // namespace
}  // namespace allowd::decide
