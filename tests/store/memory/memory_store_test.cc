// SPDX-License-Identifier: MIT
#include "agent/store/memory/memory_store.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "tests/store/store_contract.h"
#include "tests/support/printing.h"

namespace allowd::store {
namespace {

using namespace std::chrono_literals;
using limiter::Micros;
using limiter::Operation;
using limiter::Verdict;
using testing::make_bucket;
using testing::shard_time;

const std::string kTag = make_limit_tag('n', "api", "");

Answer ask(MemoryStore& store, const limiter::DefinitionPtr& bucket, Operation operation,
           std::string_view key, std::int64_t cost, Micros now, std::string_view tag = kTag) {
  return store.decide({operation, bucket.get(), tag, key, cost, 0}, shard_time(now));
}
Answer take(MemoryStore& store, const limiter::DefinitionPtr& bucket, std::string_view key, std::int64_t cost,
            Micros now) {
  return ask(store, bucket, Operation::take, key, cost, now);
}

double metric(const MemoryStore& store, std::string_view name) {
  std::vector<stats::Metric> metrics;
  store.collect(metrics);
  const auto found =
      std::find_if(metrics.begin(), metrics.end(), [&](const auto& each) { return each.name == name; });
  REQUIRE(found != metrics.end());
  return found->value;
}

testing::Decide decide_with(MemoryStore& store) {
  return [&store](const Question& question, limiter::TimePoint now) { return store.decide(question, now); };
}

TEST_CASE("memory store: keys and limits do not share") {
  MemoryStore store({});
  testing::check_keys_are_apart(decide_with(store));
}

TEST_CASE("memory store: random questions are answered as the limiter answers them") {
  MemoryStore store({.max_keys = 16, .epoch_offset = {}, .secret = {1, 2, 3, 4}});
  testing::check_decides_as_the_limiter(decide_with(store), 1, 20'000);
}

TEST_CASE("memory store: answers at once, from this host, and is always there") {
  MemoryStore store({});
  const limiter::DefinitionPtr bucket = make_bucket(10, 1s, 10);
  const SteadyTime now{5s};
  const auto answer = store.ask({Operation::take, bucket.get(), kTag, "k", 1, 0}, now);
  CHECK(answer.status == Answer::Status::decided);
  CHECK_FALSE(answer.by_overflow);
  CHECK(answer.decision.remaining == 9);
  CHECK(store.name() == "memory");
  CHECK(store.is_local());
  CHECK(store.is_available());
  CHECK(store.next_probe_in(0, now) >= 1us);
}

TEST_CASE("memory store: the host's clock is offset to the epoch") {
  MemoryStore store({.max_keys = 16, .epoch_offset = 1h, .secret = {}});
  const limiter::DefinitionPtr bucket = make_bucket(10, 1s, 10);
  const auto taken = store.ask({Operation::take, bucket.get(), kTag, "k", 10, 0}, SteadyTime{0s});
  REQUIRE(taken.decision.verdict == Verdict::ok);
  // The same moment and a tenth of a second, told as shard time.
  CHECK(take(store, bucket, "k", 1, 1h + 100ms).decision.verdict == Verdict::ok);
  CHECK(take(store, bucket, "k", 1, 1h + 100ms).decision.verdict == Verdict::limited);
}

TEST_CASE("memory store: only a charge makes a key known") {
  MemoryStore store({.max_keys = 16, .epoch_offset = {}, .secret = {}});
  const limiter::DefinitionPtr bucket = make_bucket(10, 1s, 10);
  CHECK(ask(store, bucket, Operation::peek, "a", 1, 1s).decision.remaining == 10);
  CHECK(take(store, bucket, "a", 0, 1s).decision.remaining == 10);
  CHECK(take(store, bucket, "a", 11, 1s).decision.verdict == Verdict::never);
  CHECK(ask(store, bucket, Operation::refund, "a", 5, 1s).decision.remaining == 10);
  CHECK(ask(store, bucket, Operation::force, "a", 0, 1s).decision.remaining == 10);
  CHECK(store.is_empty());
  CHECK(ask(store, bucket, Operation::force, "a", 3, 1s).decision.remaining == 7);
  CHECK_FALSE(store.is_empty());
  CHECK(metric(store, "memory_keys") == 1);
  CHECK(metric(store, "memory_keys_max") == 16);
}

// A store that has no room left: `count` keys that matter for an hour.
void fill(MemoryStore& store, int count, Micros now) {
  const limiter::DefinitionPtr slow = make_bucket(1, 1h, 1);
  for (int i = 0; i < count; ++i) {
    REQUIRE_FALSE(take(store, slow, "filler " + std::to_string(i), 1, now).by_overflow);
  }
}

TEST_CASE("memory store: keys that have no room share their limit's overflow bucket") {
  MemoryStore store({.max_keys = 32, .epoch_offset = {}, .secret = {}});
  fill(store, 32, 1s);
  const limiter::DefinitionPtr bucket = make_bucket(10, 1s, 10);
  const Answer first = take(store, bucket, "x", 6, 1s);
  CHECK(first.by_overflow);
  CHECK(first.decision.verdict == Verdict::ok);
  CHECK(first.decision.remaining == 4);
  const Answer second = take(store, bucket, "y", 6, 1s);
  CHECK(second.by_overflow);
  CHECK(second.decision.verdict == Verdict::limited);
  CHECK(take(store, bucket, "y", 4, 1s).decision.verdict == Verdict::ok);
  CHECK(metric(store, "overflow_decisions_total") == 3);

  const Answer other_limit =
      ask(store, bucket, Operation::take, "x", 10, 1s, make_limit_tag('n', "other", ""));
  CHECK(other_limit.by_overflow);
  CHECK(other_limit.decision.verdict == Verdict::ok);
}

TEST_CASE("memory store: keys that were there before it was full keep their own buckets") {
  MemoryStore store({.max_keys = 33, .epoch_offset = {}, .secret = {}});
  const limiter::DefinitionPtr bucket = make_bucket(1, 1h, 10);
  CHECK(take(store, bucket, "early", 3, 1s).decision.remaining == 7);
  fill(store, 32, 1s);
  CHECK(take(store, bucket, "late", 10, 1s).by_overflow);
  const Answer early = take(store, bucket, "early", 3, 1s);
  CHECK_FALSE(early.by_overflow);
  CHECK(early.decision.remaining == 4);
}

TEST_CASE("memory store: a peek at a key that has no room shows what a charge would find") {
  MemoryStore store({.max_keys = 32, .epoch_offset = {}, .secret = {}});
  fill(store, 32, 1s);
  const limiter::DefinitionPtr bucket = make_bucket(1, 1h, 10);
  REQUIRE(take(store, bucket, "x", 10, 1s).by_overflow);
  const Answer peeked = ask(store, bucket, Operation::peek, "y", 1, 1s);
  const Answer taken = take(store, bucket, "y", 1, 1s);
  CHECK(taken.decision.verdict == Verdict::limited);
  CHECK(peeked.decision.verdict == taken.decision.verdict);
  CHECK(peeked.decision.remaining == taken.decision.remaining);
  CHECK(peeked.by_overflow);
}

TEST_CASE("memory store: room comes back when keys have been full for a minute") {
  MemoryStore store({.max_keys = 32, .epoch_offset = {}, .secret = {}});
  const limiter::DefinitionPtr bucket = make_bucket(10, 1s, 10);
  for (int i = 0; i < 32; ++i) static_cast<void>(take(store, bucket, "filler " + std::to_string(i), 10, 1s));
  CHECK(take(store, bucket, "late", 1, 1s + 1s + 1min - 1us).by_overflow);
  CHECK_FALSE(take(store, bucket, "late", 1, 1s + 1s + 1min).by_overflow);
}

// Sweeps until every key was looked at once.
void sweep_all(MemoryStore& store, Micros now) {
  for (int pass = 0; pass < 130; ++pass) static_cast<void>(store.sweep(SteadyTime{now}));
}

TEST_CASE("memory store: sweeping drops only keys that have been full for a minute") {
  MemoryStore store({.max_keys = 10'000, .epoch_offset = {}, .secret = {}});
  const limiter::DefinitionPtr bucket = make_bucket(10, 1s, 10);
  for (int i = 0; i < 1000; ++i) static_cast<void>(take(store, bucket, std::to_string(i), 10, 0s));
  static_cast<void>(take(store, bucket, "half", 5, 0s));
  sweep_all(store, 1s + 1min - 1us);
  CHECK(metric(store, "memory_keys") == 1000);  // the one that was half used has been full for longer
  CHECK(take(store, bucket, "0", 10, 500ms).decision.verdict == Verdict::limited);
  sweep_all(store, 1s + 1min);
  CHECK(store.is_empty());
  CHECK_FALSE(store.sweep(SteadyTime{2min}));
}

TEST_CASE("memory store: whatever is asked, forgetting a key changes no answer") {
  // Two stores get the same questions; one of them sweeps all the time.
  MemoryStore keeps({.max_keys = 10'000, .epoch_offset = {}, .secret = {}});
  MemoryStore sweeps({.max_keys = 10'000, .epoch_offset = {}, .secret = {}});
  const std::vector<limiter::DefinitionPtr> buckets = {make_bucket(10, 1s, 10), make_bucket(1, 1min, 3),
                                                       make_bucket(1, 1s, 200)};
  std::mt19937_64 random(3);
  const auto below = [&](std::uint64_t bound) { return static_cast<std::int64_t>(random() % bound); };
  Micros now = 1h;
  std::size_t fewest = 10'000;
  for (int step = 0; step < 20'000; ++step) {
    const auto number = static_cast<std::size_t>(below(40));
    const limiter::DefinitionPtr& bucket = buckets[number % buckets.size()];
    const std::string key = std::to_string(number);
    const auto operation = static_cast<Operation>(below(4));
    const std::int64_t cost = below(static_cast<std::uint64_t>(bucket->bucket().burst()) + 2);
    const Answer kept = ask(keeps, bucket, operation, key, cost, now);
    const Answer swept = ask(sweeps, bucket, operation, key, cost, now);
    if (kept.decision != swept.decision) FAIL("step " << step << " differs");
    now += Micros{below(4) == 0 ? below(90'000'000) : below(1'000'000)};
    sweep_all(sweeps, now);
    if (step > 1000) fewest = std::min(fewest, static_cast<std::size_t>(metric(sweeps, "memory_keys")));
  }
  CHECK(fewest < 40);  // some were indeed forgotten
}

TEST_CASE("memory store: a limit that was lowered keeps its keys for as long as they have to wait") {
  MemoryStore store({.max_keys = 100, .epoch_offset = {}, .secret = {}});
  const limiter::DefinitionPtr fast = make_bucket(100, 1s, 100), slow = make_bucket(1, 1min, 10);
  static_cast<void>(take(store, fast, "k", 100, 0s));
  CHECK(take(store, slow, "k", 1, 0s).decision.verdict == Verdict::limited);
  sweep_all(store, 5min);
  CHECK(take(store, slow, "k", 1, 5min).decision.verdict == Verdict::limited);
}

TEST_CASE("memory store: thousands of limits may overflow, those beyond share one bucket, and none is free") {
  MemoryStore store({.max_keys = 1, .epoch_offset = {}, .secret = {}});
  fill(store, 1, 1s);
  const limiter::DefinitionPtr bucket = make_bucket(1, 1h, 1);
  constexpr int kLimits = 5000;
  int admitted = 0;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kLimits; ++i) {
      const std::string tag = make_limit_tag('i', std::to_string(i), "");
      if (ask(store, bucket, Operation::take, "k", 1, 1s, tag).decision.verdict == Verdict::ok) ++admitted;
    }
  }
  // The first 4096 have a bucket each, all others together one more.
  CHECK(admitted == 4096 + 1);
}

TEST_CASE("memory store: growing is done in bounded steps, which it reports") {
  constexpr std::size_t kKeys = 100'000;
  MemoryStore store({.max_keys = kKeys, .epoch_offset = {}, .secret = {5, 6, 7, 8}});
  const limiter::DefinitionPtr bucket = make_bucket(1, 1h, 1);
  for (std::size_t i = 0; i < kKeys; ++i)
    REQUIRE_FALSE(take(store, bucket, std::to_string(i), 1, 1s).by_overflow);
  CHECK(metric(store, "memory_keys") == kKeys);
  CHECK(metric(store, "memory_longest_growth_step_entries") > 0);
  CHECK(metric(store, "memory_longest_growth_step_entries") < 4096);
}

TEST_CASE("memory store: tags state their own length") {
  CHECK(make_limit_tag('n', "api", "") == "n3:api:");
  CHECK(make_limit_tag('i', "", "") == "i0::");
  CHECK(make_limit_tag('n', "a:b", "") == "n3:a:b:");
}

limiter::DefinitionPtr definition_of(std::vector<limiter::Tier> tiers) {
  auto definition = limiter::Definition::make(std::move(tiers), false);
  REQUIRE(definition);
  return *definition;
}
limiter::Tier bucket_tier(std::string name, std::int64_t burst) {
  return {std::move(name), *limiter::TokenBucket::make({1, 1h}, burst), false};
}
limiter::DefinitionPtr log_of(std::int64_t count) {
  return definition_of({{"", *limiter::SlidingLog::make({count, 1min}), false}});
}

TEST_CASE("memory store: each tier takes a place, and all of a key are kept or none") {
  MemoryStore store({.max_keys = 5, .epoch_offset = {}, .secret = {}});
  const auto three = definition_of({bucket_tier("a", 5), bucket_tier("b", 6), bucket_tier("c", 7)});
  CHECK(take(store, three, "x", 2, 1s).decision.remaining == 3);
  CHECK(metric(store, "memory_keys") == 3);
  CHECK(take(store, three, "x", 3, 1s).decision.remaining == 0);
  const Answer second = take(store, three, "y", 2, 1s);
  CHECK(second.by_overflow);
  CHECK(second.decision.remaining == 3);
  CHECK(metric(store, "memory_keys") == 3);
  CHECK(take(store, three, "z", 4, 1s).decision.verdict == Verdict::limited);  // one overflow for all of them
}

TEST_CASE("memory store: a log takes as many places as it may ever need, and gives them back") {
  MemoryStore store({.max_keys = 600, .epoch_offset = {}, .secret = {}});
  const auto log = log_of(1000);
  for (int i = 0; i < 1000; ++i) {
    const auto now = 1s + limiter::Micros{i};
    CHECK(take(store, log, "x", 1, now).decision.verdict == Verdict::ok);
  }
  const auto places = metric(store, "memory_keys");
  CHECK(places * 72 >= 1000 * sizeof(limiter::Stamp));
  CHECK(take(store, log, "y", 1, 2s).by_overflow == (2 * places > 600));
  CHECK(take(store, log, "x", 1, 2s).decision.verdict == Verdict::limited);
  CHECK(store.sweep(SteadyTime{60s}));
  CHECK(metric(store, "memory_keys") >= places);
  for (int i = 0; i < 200; ++i) store.sweep(SteadyTime{200s});
  CHECK(metric(store, "memory_keys") == 0);
  CHECK(store.is_empty());
}

TEST_CASE("memory store: what is forgotten starts anew, whatever it was counted by") {
  MemoryStore store({});
  for (const auto& definition :
       {make_bucket(1, 1h, 3), log_of(3), definition_of({bucket_tier("a", 3), bucket_tier("b", 9)})}) {
    CHECK(take(store, definition, "x", 3, 1s).decision.remaining == 0);
    CHECK(take(store, definition, "other", 3, 1s).decision.remaining == 0);
    bool is_forgotten = false;
    store.reset({Operation::refund, definition.get(), kTag, "x", 0, 0},
                [&](bool done) { is_forgotten = done; });
    CHECK(is_forgotten);
    CHECK(take(store, definition, "x", 3, 1s).decision.verdict == Verdict::ok);
    CHECK(take(store, definition, "other", 1, 1s).decision.verdict == Verdict::limited);
    store.forget(*definition, hash_openly(kTag, "x"));
    store.forget(*definition, hash_openly(kTag, "other"));
  }
  CHECK(store.is_empty());
}

TEST_CASE("memory store: a window that was refunded to nothing keeps its start") {
  MemoryStore store({});
  const auto window = definition_of(
      {{"", *limiter::FixedWindow::make({3, 1min}, limiter::FixedWindow::Align::first), false}});
  CHECK(take(store, window, "x", 1, 10s).decision.reset_after == 1min);
  CHECK(ask(store, window, Operation::refund, "x", 1, 20s).decision.remaining == 3);
  CHECK(take(store, window, "x", 1, 30s).decision.reset_after == 40s);
}

// Admits as many as the test says, and remembers when it was asked last.
struct FakeBudget final : KeyBudget {
  int places = 0;
  SteadyTime asked_at{};
  bool admit(SteadyTime now) override {
    asked_at = now;
    return places > 0 && places-- > 0;
  }
};

TEST_CASE("memory store: new keys without a place in their limit's budget share its overflow bucket") {
  const limiter::DefinitionPtr base = make_bucket(10, 1s, 10);
  const limiter::Tier second{"second", *limiter::TokenBucket::make({10, 1s}, 10)};
  const limiter::Tier day{"day", *limiter::FixedWindow::make({100, 24h}, limiter::FixedWindow::Align::first)};
  const limiter::Tier log{"", *limiter::SlidingLog::make({10, 1s})};
  for (const limiter::DefinitionPtr& definition :
       {base, *limiter::Definition::make({second, day}, false), *limiter::Definition::make({log}, false)}) {
    MemoryStore store({.max_keys = 1000, .epoch_offset = 1h, .secret = {}});
    FakeBudget budget;
    const Overflow overflow{&budget, make_bucket(3, 1s, 3), make_limit_tag('o', "api", "")};
    const auto ask_about = [&](Operation operation, std::string_view key, std::int64_t cost,
                               bool is_about_overflow = false) {
      return store.decide({.operation = operation,
                           .definition = definition.get(),
                           .limit_tag = kTag,
                           .key = key,
                           .cost = cost,
                           .overflow = &overflow,
                           .is_about_overflow = is_about_overflow},
                          shard_time(1h + 5s));
    };
    budget.places = 1;
    CHECK_FALSE(ask_about(Operation::take, "known", 1).by_overflow);
    CHECK(budget.asked_at == SteadyTime{5s});  // whichever store asks: the host's clock
    const Answer first = ask_about(Operation::take, "a", 2);
    CHECK(first.by_overflow);
    CHECK(first.decision.capacity == 3);
    CHECK(first.decision.remaining == 1);
    CHECK(ask_about(Operation::take, "b", 2).decision.verdict == Verdict::limited);
    CHECK(ask_about(Operation::take, "b", 4).decision.verdict == Verdict::never);
    CHECK_FALSE(ask_about(Operation::take, "known", 1).by_overflow);
    CHECK_FALSE(ask_about(Operation::peek, "a", 1).by_overflow);
    CHECK(ask_about(Operation::peek, "a", 1).decision.remaining == 10);
    CHECK(ask_about(Operation::refund, "a", 2, true).decision.remaining == 3);
    CHECK(ask_about(Operation::force, "c", 9).by_overflow);
    CHECK(metric(store, "overflow_decisions_total") == 0);
  }
}

TEST_CASE("memory store: where the table is full, overflow has the numbers that it was given") {
  MemoryStore store({.max_keys = 2, .epoch_offset = {}, .secret = {}});
  fill(store, 2, 1s);
  const limiter::DefinitionPtr bucket = make_bucket(10, 1s, 10);
  const Overflow overflow{nullptr, make_bucket(3, 1s, 3), make_limit_tag('o', "api", "")};
  const Answer answer = store.decide({.operation = Operation::take,
                                      .definition = bucket.get(),
                                      .limit_tag = kTag,
                                      .key = "x",
                                      .cost = 1,
                                      .overflow = &overflow},
                                     shard_time(1s));
  CHECK(answer.by_overflow);
  CHECK(answer.decision.capacity == 3);
  CHECK(metric(store, "overflow_decisions_total") == 1);
}

}  // namespace
}  // namespace allowd::store
