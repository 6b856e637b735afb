// SPDX-License-Identifier: MIT
#include "agent/decide/many.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "agent/store/memory/memory_store.h"
#include "tests/support/fake_store.h"
#include "tests/support/printing.h"

namespace allowd::decide {
namespace {

using namespace std::chrono_literals;
using limiter::Operation;
using protocol::Source;
using protocol::Verdict;
using testing::FakeStore;
using Kind = Outcome::Kind;

constexpr std::string_view kConfig = R"(
[limits.user]
rate = "3/h"
on_failure = "deny"
[limits.ip]
rate = "5/h"
on_failure = "deny"
[limits.bad]
rate = "1/h"
overrides = { k = { deny = true }, free = { unlimited = true } }
)";

SteadyTime at(limiter::Micros since_start) { return SteadyTime{since_start}; }

protocol::Query item(std::string_view limit, std::string_view key, std::int64_t cost = 1) {
  protocol::Query query;
  query.limit = limit;
  query.key = key;
  query.cost = cost;
  return query;
}

template <class StoreKind>
struct Scene {
  explicit Scene(StoreKind& kept_in) : store(kept_in) {}

  Kind start(std::vector<protocol::Query> items, bool all_or_none = true) {
    many.emplace(decider, [this] { ++done; });
    return many->start(items, all_or_none, at(1s));
  }
  std::string verdicts() const {
    std::string text;
    for (const protocol::Decision& decision : many->decisions()) {
      text += std::string(name_of(decision.verdict)) + " " + std::to_string(decision.remaining) + ", ";
    }
    return text;
  }
  double metric(std::string_view name) const {
    std::vector<stats::Metric> metrics;
    decider.collect(metrics);
    const auto found = std::find_if(metrics.begin(), metrics.end(),
                                    [&](const stats::Metric& metric) { return metric.name == name; });
    REQUIRE(found != metrics.end());
    return found->value;
  }

  config::Config config = *config::parse_config(kConfig, "f");
  stats::Registry registry;
  LimitTable table{config, registry};
  StoreKind& store;
  Decider decider{store, store, table, registry};
  std::optional<Many> many;
  int done = 0;
};

TEST_CASE("many: each item is decided by itself") {
  store::MemoryStore store({});
  Scene scene(store);
  CHECK(scene.start({item("user", "a", 2), item("user", "a", 2), item("ip", "a", 5)}, false) ==
        Kind::decided);
  CHECK(scene.verdicts() == "ok 1, limited 1, ok 0, ");
  CHECK(scene.done == 0);
}

TEST_CASE("many: all pass, or nothing is charged and those that would pass answer as a peek") {
  store::MemoryStore store({});
  Scene scene(store);
  CHECK(scene.start({item("user", "a", 1), item("ip", "a", 1)}) == Kind::decided);
  CHECK(scene.verdicts() == "ok 2, ok 4, ");
  CHECK(scene.start({item("user", "a", 3), item("ip", "a", 1)}) == Kind::decided);
  CHECK(scene.verdicts() == "limited 2, ok 4, ");
  CHECK(scene.start({item("user", "a", 4), item("ip", "a", 1)}) == Kind::decided);
  CHECK(scene.verdicts() == "never 2, ok 4, ");
  CHECK(scene.start({item("user", "a", 2), item("ip", "a", 4)}) == Kind::decided);
  CHECK(scene.verdicts() == "ok 0, ok 0, ");
}

TEST_CASE("many: two items of one key and limit count as their sum") {
  store::MemoryStore store({});
  Scene scene(store);
  CHECK(scene.start({item("user", "a", 2), item("ip", "a"), item("user", "a", 2)}) == Kind::decided);
  CHECK(scene.verdicts() == "never 3, ok 5, never 3, ");
  CHECK(scene.start({item("user", "a", 2), item("user", "a", 1), item("user", "b", 3)}) == Kind::decided);
  CHECK(scene.verdicts() == "ok 0, ok 0, ok 0, ");
}

TEST_CASE("many: overrides take part") {
  store::MemoryStore store({});
  Scene scene(store);
  CHECK(scene.start({item("bad", "free"), item("bad", "free"), item("user", "a")}) == Kind::decided);
  CHECK(scene.verdicts() == "ok 0, ok 0, ok 2, ");
  CHECK(scene.start({item("user", "a"), item("bad", "k")}) == Kind::decided);
  CHECK(scene.verdicts() == "ok 2, never 0, ");
}

TEST_CASE("many: no items are all decided") {
  store::MemoryStore store({});
  Scene scene(store);
  for (const bool all_or_none : {true, false}) {
    CHECK(scene.start({}, all_or_none) == Kind::decided);
    CHECK(scene.many->decisions().empty());
  }
}

TEST_CASE("many: an item that cannot be asked refuses the whole, and nothing is asked") {
  FakeStore store;
  Scene scene(store);
  for (const bool all_or_none : {true, false}) {
    CHECK(scene.start({item("user", "a"), item("nobody", "a")}, all_or_none) == Kind::refused);
    CHECK(name_of(scene.many->refusal().code) == "unknown_limit");
  }
  CHECK(store.asked.empty());
}

TEST_CASE("many: a store that can decides all as one") {
  FakeStore store;
  store.can_ask_together = true;
  Scene scene(store);
  CHECK(scene.start({item("user", "b"), item("ip", "a", 2), item("user", "b")}) == Kind::deferred);
  REQUIRE(store.asked.size() == 2);
  CHECK(store.asked[0].cost == 2);
  store.grant(store.asked[1], at(1s));
  CHECK(scene.done == 0);
  store.grant(store.asked[0], at(1s));
  CHECK(scene.done == 1);
  CHECK(scene.verdicts() == "ok 1, ok 3, ok 1, ");
}

TEST_CASE("many: what a store cannot decide as one is asked in the order of the keys") {
  FakeStore store;
  Scene scene(store);
  CHECK(scene.start({item("user", "b"), item("user", "a"), item("ip", "z")}) == Kind::deferred);
  const std::vector<std::string> expected = {"z", "a", "b"};  // n2:ip: before n4:user:
  for (const std::string& key : expected) {
    CHECK(store.asked.back().key == key);
    CHECK(store.asked.back().at == at(1s));
    CHECK(scene.done == 0);
    store.grant(store.asked.back(), at(1s));
  }
  CHECK(store.asked.size() == 3);
  CHECK(scene.done == 1);
  CHECK(scene.verdicts() == "ok 2, ok 2, ok 4, ");
}

TEST_CASE("many: what was taken before a refusal is given back, and all others are looked at only") {
  FakeStore store;
  Scene scene(store);
  CHECK(scene.start({item("user", "a"), item("user", "b", 2), item("user", "c")}) == Kind::deferred);
  store.grant(store.asked[0], at(1s));
  store.answer(store.asked[1], store.decided(store.asked[1], 3 * 1'200'000'000LL, limiter::Verdict::limited),
               at(1s));
  std::string operations;
  for (std::size_t i = 2; i < store.asked.size(); ++i) {
    const auto& asked = store.asked[i];
    operations += asked.key + std::to_string(static_cast<int>(asked.operation)) + " ";
    store.answer(asked, store.decided(asked, 0), at(1s));
  }
  CHECK(operations == "a2 a1 c1 ");  // refund, peek, peek
  CHECK(scene.done == 1);
  CHECK(scene.verdicts() == "ok 3, limited 0, ok 3, ");
  CHECK(scene.metric("compensations_total") == 1);
  CHECK(scene.metric("compensations_dropped_total") == 0);
}

TEST_CASE("many: what was taken is not given back to a server that may never have heard of it") {
  for (const std::optional<std::uint32_t> epoch :
       {std::optional<std::uint32_t>{2}, std::optional<std::uint32_t>{}}) {
    FakeStore store;
    Scene scene(store);
    CHECK(scene.start({item("user", "a"), item("user", "b")}) == Kind::deferred);
    store.grant(store.asked[0], at(1s));
    store.epoch_now = epoch;
    store.answer(store.asked[1],
                 store.decided(store.asked[1], 3 * 1'200'000'000LL, limiter::Verdict::limited), at(1s));
    REQUIRE(store.asked.size() == 3);
    CHECK(store.asked[2].operation == Operation::peek);
    store.answer(store.asked[2], store.decided(store.asked[2], 1'200'000'000LL), at(1s));
    CHECK(scene.done == 1);
    CHECK(scene.verdicts() == "ok 2, limited 0, ");
    CHECK(scene.metric("compensations_total") == 1);
    CHECK(scene.metric("compensations_dropped_total") == 1);
  }
}

TEST_CASE("many: all have one deadline, and each is then answered by its own policy") {
  FakeStore store;
  store.can_ask_together = true;
  Scene scene(store);
  auto first = item("user", "a");
  first.deadline_us = 5000;
  CHECK(scene.start({first, item("ip", "a")}) == Kind::deferred);
  scene.decider.expire(at(1s + 4999us));
  CHECK(scene.done == 0);
  scene.decider.expire(at(1s + 5ms));
  CHECK(scene.done == 1);
  CHECK(scene.verdicts() == "unavailable 0, unavailable 0, ");
}

TEST_CASE("many: a failing store leaves each to its policy, and nothing is given back") {
  FakeStore store;
  store.mode = FakeStore::Mode::fail;
  Scene scene(store);
  CHECK(scene.start({item("user", "a"), item("ip", "a")}) == Kind::decided);
  CHECK(scene.verdicts() == "unavailable 0, unavailable 0, ");
  for (const auto& asked : store.asked) CHECK(asked.operation != Operation::refund);
}

TEST_CASE("many: each item asked together counts among the hot keys, and so does its late refusal") {
  FakeStore store;
  store.can_ask_together = true;
  Scene scene(store);
  CHECK(scene.start({item("user", "a"), item("ip", "b")}) == Kind::deferred);
  const auto keys = [&](stats::HotKeys::By by) {
    std::string all;
    for (const auto& row : scene.registry.hot_keys().report(by, 10, at(2s)).rows)
      all += std::string(row.limit.kept()) + " " + std::string(row.key.kept()) + " " +
             std::to_string(row.count) + ", ";
    return all;
  };
  CHECK(keys(stats::HotKeys::By::queries) == "ip b 1, user a 1, ");
  CHECK(keys(stats::HotKeys::By::refusals).empty());
  scene.decider.expire(at(2s));
  CHECK(keys(stats::HotKeys::By::queries) == "ip b 1, user a 1, ");
  CHECK(keys(stats::HotKeys::By::refusals) == "ip b 1, user a 1, ");
}

}  // namespace
}  // namespace allowd::decide
