// SPDX-License-Identifier: MIT
#include "agent/decide/key_budget.h"

#include <chrono>
#include <string>
#include <vector>

#include "agent/decide/decider.h"
#include "agent/decide/many.h"
#include "agent/store/memory/memory_store.h"
#include "tests/support/printing.h"

namespace allowd::decide {
namespace {

using namespace std::chrono_literals;
using store::SteadyTime;

SteadyTime at(limiter::Micros since_start) { return SteadyTime{since_start}; }

int admitted(KeyBudget& budget, int tries, SteadyTime now) {
  int count = 0;
  for (int i = 0; i < tries; ++i) count += budget.admit(now) ? 1 : 0;
  return count;
}

TEST_CASE("key budget: so many at once, and so many a second") {
  KeyBudget budget("api");
  budget.set_rate(4);
  CHECK(admitted(budget, 9, at(10s)) == 4);
  CHECK(budget.refused() == 5);
  CHECK(admitted(budget, 9, at(10s + 250ms - 1us)) == 0);
  CHECK(admitted(budget, 9, at(10s + 250ms)) == 1);
  CHECK(admitted(budget, 9, at(11s)) == 3);
  CHECK(admitted(budget, 9, at(1h)) == 4);
  CHECK(admitted(budget, 9, at(1min)) == 0);  // a clock that steps back admits nobody
}

TEST_CASE("key budget: another rate keeps what is used") {
  KeyBudget budget("api");
  budget.set_rate(10);
  CHECK(admitted(budget, 10, at(1s)) == 10);
  budget.set_rate(20);
  CHECK(admitted(budget, 40, at(1s)) == 10);
  budget.set_rate(5);
  CHECK(admitted(budget, 40, at(1s)) == 0);
  CHECK(admitted(budget, 40, at(10s)) == 5);
}

TEST_CASE("key budget: agents that share the store share the budget, and those of one host's limits do not") {
  auto config = config::parse_config(
      "[limits.shared]\nrate = \"1/s\"\nmax_new_keys_per_second = 10\n"
      "[limits.own]\nrate = \"1/s\"\nmax_new_keys_per_second = 10\nscope = \"host\"\n",
      "f");
  REQUIRE(config);
  stats::Registry registry;
  LimitTable table(*config, registry);
  const auto budget_of = [&](std::string_view limit) { return (*table.find(limit))->overflow()->budget; };
  const auto count = [&](std::string_view limit, SteadyTime now) {
    int passed = 0;
    for (int i = 0; i < 20; ++i) passed += budget_of(limit)->admit(now) ? 1 : 0;
    return passed;
  };
  table.share_between(4);
  CHECK(count("shared", at(1s)) == 2);
  CHECK(count("own", at(1s)) == 10);
  table.load(*config);  // forgets nobody
  CHECK(count("shared", at(10s)) == 2);
  table.share_between(64);
  CHECK(count("shared", at(20s)) == 1);
  table.share_between(1);
  CHECK(count("shared", at(30s)) == 10);
}

TEST_CASE("key budget: the largest rate fits") {
  KeyBudget budget("api");
  budget.set_rate(config::kMostNewKeysPerSecond);
  CHECK(admitted(budget, 10, at(1s)) == 10);
}

TEST_CASE("key budget: a flood begins once, until a minute has been quiet") {
  KeyBudget budget("api");
  budget.set_rate(1);
  CHECK(admitted(budget, 1, at(1s)) == 1);
  CHECK(budget.floods() == 0);
  for (limiter::Micros now = 1s; now < 10min; now += 500ms) static_cast<void>(admitted(budget, 2, at(now)));
  CHECK(budget.floods() == 1);
  CHECK(admitted(budget, 2, at(10min + 1min - 500ms - 1us)) == 1);
  CHECK(budget.floods() == 1);
  CHECK(admitted(budget, 2, at(12min)) == 1);
  CHECK(budget.floods() == 2);
}

// A decider on a memory store, asked at one moment.
struct Scene final : private Asker {
  explicit Scene(const std::string& text) : config(*config::parse_config(text, "f")) {}

  protocol::Decision take(std::string_view key, std::int64_t cost = 1, std::string_view plan = "") {
    const Outcome outcome = decider.ask(limiter::Operation::take, query(key, cost, plan), at(1s), *this, 1);
    REQUIRE(outcome.kind == Outcome::Kind::decided);
    return outcome.decision;
  }
  static protocol::Query query(std::string_view key, std::int64_t cost, std::string_view plan = "") {
    protocol::Query query;
    query.limit = "api";
    query.key = key;
    query.cost = cost;
    query.plan = plan;
    return query;
  }
  void reload(const std::string& text) { table.load(*config::parse_config(text, "f")); }
  double metric(std::string_view name) const {
    std::vector<stats::Metric> metrics;
    decider.collect(metrics);
    for (const stats::Metric& each : metrics) {
      if (each.name == name) return each.value;
    }
    return -1;
  }

  config::Config config;
  stats::Registry registry;
  LimitTable table{config, registry};
  store::MemoryStore store{{}};
  Decider decider{store, store, table, registry};

 private:
  void on_decision(std::uint64_t, const protocol::Decision&) override {}
};

const std::string kBase = "[limits.api]\nrate = \"10/h\"\nmax_new_keys_per_second = 1\n";

TEST_CASE("key budget: without numbers of its own the overflow bucket has the limit's") {
  Scene scene(kBase);
  CHECK(scene.take("a").tier.empty());
  CHECK(scene.take("b", 10).tier == "overflow");
  CHECK_FALSE(scene.take("c").allowed);
  CHECK(scene.take("a").allowed);
  CHECK(scene.metric("new_keys_refused_total") == 2);
  const auto& counters = scene.registry.decisions_of("api", "overflow");
  CHECK(counters.count(protocol::Verdict::ok, protocol::Source::local) == 1);
  CHECK(counters.count(protocol::Verdict::limited, protocol::Source::local) == 1);
}

TEST_CASE("key budget: overrides and plans share the places and the overflow bucket of their limit") {
  Scene scene(
      kBase +
      "overrides = { big = { rate = \"500/h\" }, watched = { rate = \"1/h\", shadow = true }, free = { "
      "unlimited = true }, log = { rate = \"7/h\", algorithm = \"sliding_log\" } }\nplans = { pro = { "
      "rate = \"90/h\" } }\n");
  CHECK(scene.take("free").tier.empty());
  CHECK(scene.take("a").tier.empty());  // the only place
  for (const auto& [key, plan] : {std::pair{"big", ""}, {"log", ""}, {"b", "pro"}}) {
    CAPTURE(key);
    const protocol::Decision decision = scene.take(key, 3, plan);
    CHECK(decision.tier == "overflow");
    CHECK(decision.limit == 10);
  }
  CHECK(scene.take("c", 1).remaining == 0);
  CHECK(scene.take("big").verdict == protocol::Verdict::limited);
  // What only watches refuses nobody, whoever has used the bucket up.
  CHECK(scene.take("watched").verdict == protocol::Verdict::shadow);
  CHECK(scene.take("watched").allowed);
}

TEST_CASE("key budget: a reload changes it, and what is used stays used") {
  Scene scene(kBase);
  CHECK(scene.take("a").tier.empty());
  scene.reload(kBase + "overflow = { rate = \"4/h\" }\n");
  CHECK(scene.take("b", 4).tier == "overflow");
  CHECK(scene.take("b", 1).limit == 4);
  scene.reload("[limits.api]\nrate = \"10/h\"\n");
  CHECK(scene.take("c").tier.empty());
  CHECK(scene.metric("new_keys_refused_total") == 2);
  scene.reload(kBase);
  CHECK(scene.take("d").tier == "overflow");
}

TEST_CASE("key budget: all or nothing, also of keys that find one overflow bucket between them") {
  Scene scene(kBase + "overflow = { rate = \"3/h\" }\n");
  CHECK(scene.take("a").tier.empty());
  Many many(scene.decider, [] {});
  const std::vector<protocol::Query> items = {scene.query("b", 2), scene.query("c", 2)};
  CHECK(many.start(items, true, at(1s)) == Outcome::Kind::decided);
  REQUIRE(many.decisions().size() == 2);
  CHECK(many.decisions()[0].verdict == protocol::Verdict::ok);
  CHECK(many.decisions()[0].remaining == 3);
  CHECK(many.decisions()[1].verdict == protocol::Verdict::limited);
  CHECK(scene.take("d", 3).verdict == protocol::Verdict::ok);
  CHECK(scene.metric("compensations_total") == 1);
}

}  // namespace
}  // namespace allowd::decide
