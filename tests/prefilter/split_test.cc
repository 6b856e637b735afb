// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "tests/prefilter/fleet.h"
#include "tests/support/printing.h"

namespace allowd::prefilter {
namespace {

using namespace std::chrono_literals;
using limiter::DefinitionPtr;
using limiter::Micros;
using testing::Fleet;
using Status = store::Answer::Status;

DefinitionPtr bucket(std::int64_t count, Micros period, std::int64_t burst) {
  return *limiter::Definition::make({{"", *limiter::TokenBucket::make({count, period}, burst), false}},
                                    false);
}
std::vector<store::Part> parts_of(int parts, std::int64_t count, Micros period, std::int64_t burst) {
  std::vector<store::Part> all;
  for (int i = 0; i < parts; ++i)
    all.push_back({bucket(count, period, burst), "ns" + std::to_string(i) + ".1:x:"});
  return all;
}

// A host before three shards that asks about one key, of a limit in three parts, and waits for what comes of
// it.
class Host final : store::AnswerSink {
 public:
  explicit Host(testing::SharedKeys& keys) : store(keys, 3) {
    store.now = store::SteadyTime{1000s};
    prefilter_.attach(*this);
  }

  store::Answer ask() {
    const store::Question question{.definition = limit_.get(),
                                   .limit_tag = "n1:x:",
                                   .key = "user",
                                   .ticket = ++ticket_,
                                   .deadline = store.now + 20ms,
                                   .parts = parts_};
    told_ = prefilter_.ask(question, store.now);
    while (told_.status == Status::promised) {
      prefilter_.flush(store.now);
      if (!store.calls.empty()) store.answer();
    }
    return told_;
  }

  testing::FakeSharedStore store;

 private:
  Fate on_answer(std::uint64_t ticket, const store::Answer& answer, store::SteadyTime) override {
    CHECK(ticket == ticket_);
    told_ = answer;
    return Fate::delivered;
  }
  bool is_waiting(std::uint64_t ticket) const override {
    return ticket == ticket_ && told_.status == Status::promised;
  }

  const DefinitionPtr limit_ = bucket(3, 24h, 6);
  const std::vector<store::Part> parts_ = parts_of(3, 1, 24h, 2);
  Prefilter prefilter_{store, {}};
  std::uint64_t ticket_ = 0;
  store::Answer told_;
};

TEST_CASE("split: hosts that ask for all there is use every part up, and admit no more than the whole") {
  const auto parts = parts_of(4, 5000, 1s, 5000);
  Fleet fleet(8, bucket(20'000, 1s, 20'000), 0, parts);
  fleet.run(1s, 2);  // 160,000 a second ask
  CHECK(fleet.admitted <= 40'000);
  const std::int64_t before = fleet.admitted;
  fleet.run(3s, 2);
  CHECK(fleet.admitted - before >= 60'000 * 97 / 100);
  CHECK(fleet.admitted - before <= 60'000 + 4);
}

TEST_CASE("split: what the parts hold is admitted exactly, and each gives its share") {
  const auto parts = parts_of(4, 1, 24h, 2500);
  Fleet fleet(8, bucket(4, 24h, 10'000), 0, parts);
  fleet.run(1s, 1);
  CHECK(fleet.admitted == 10'000);
  for (const store::Part& part : parts) CHECK(fleet.used_of(part.definition, part.limit_tag) == 2500);
}

TEST_CASE("split: a host keeps to one part while that lets it pass, and hosts begin apart") {
  const auto parts = parts_of(4, 1, 24h, 2500);
  Fleet one(1, bucket(4, 24h, 10'000), 0, parts);
  one.run(100ms, 1);
  CHECK(one.admitted > 0);
  const auto has_given_all = [&](const store::Part& part) {
    return one.used_of(part.definition, part.limit_tag) == one.admitted;
  };
  CHECK(std::count_if(parts.begin(), parts.end(), has_given_all) == 1);
  Fleet many(16, bucket(4, 24h, 10'000), 0, parts);
  many.run(5ms, 1);
  const auto is_used = [&](const store::Part& part) {
    return many.used_of(part.definition, part.limit_tag) > 0;
  };
  CHECK(std::count_if(parts.begin(), parts.end(), is_used) >= 3);
}

TEST_CASE("split: while a part gives no answer the others grant, and what they refuse nobody knows") {
  for (std::uint32_t lost = 0; lost < 3; ++lost) {
    CAPTURE(lost);
    testing::SharedKeys keys;
    Host host(keys), newcomer(keys);
    host.store.lost_shard = newcomer.store.lost_shard = lost;
    for (int i = 0; i < 4; ++i) {
      const store::Answer granted = host.ask();
      CHECK(granted.status == Status::decided);
      CHECK(granted.decision.verdict == limiter::Verdict::ok);
    }
    // One knows that the others are used up, the other one is told so.
    CHECK(host.ask().status == Status::failed);
    CHECK(newcomer.ask().status == Status::failed);
    CHECK(newcomer.ask().status == Status::failed);
    host.store.lost_shard.reset();
    for (int i = 0; i < 2; ++i) CHECK(host.ask().decision.verdict == limiter::Verdict::ok);
    const store::Answer refused = host.ask();
    CHECK(refused.status == Status::decided);
    CHECK(refused.decision.verdict == limiter::Verdict::limited);
  }
}

}  // namespace
}  // namespace allowd::prefilter
