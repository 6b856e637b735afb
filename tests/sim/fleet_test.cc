// SPDX-License-Identifier: MIT
//
// What a fleet costs its store where it hurts most: every host is flooded with queries for one key that is
// used up. In simulated time, so that the figures are the same on every machine.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "agent/prefilter/prefilter.h"
#include "tests/prefilter/fake_shared_store.h"

namespace allowd::sim {
namespace {

using namespace std::chrono_literals;
using limiter::Micros;
using store::Answer;
using store::SteadyTime;

class Host final : public store::AnswerSink {
 public:
  explicit Host(testing::SharedKeys& keys) : store(keys, 1), prefilter(store, {.max_keys = 16}) {
    prefilter.attach(*this);
  }
  Fate on_answer(std::uint64_t, const Answer& answer, SteadyTime) override {
    if (answer.decision.verdict == limiter::Verdict::ok) ++admitted;
    return Fate::delivered;
  }
  bool is_waiting(std::uint64_t) const override { return true; }

  testing::FakeSharedStore store;
  prefilter::Prefilter prefilter;
  std::int64_t admitted = 0;
  std::int64_t asked = 0;
};

struct Figures {
  double questions_per_admitted = 0;
  double admitted_of_limit = 0;
};

// Each host is asked every `gap`, for cost 1; a question takes 100 µs to 1 ms there, and as long back.
Figures flood(std::size_t count, limiter::Rate rate, std::int64_t burst, Micros gap) {
  testing::SharedKeys keys;
  const auto definition =
      *limiter::Definition::make({{"", *limiter::TokenBucket::make(rate, burst), false}}, false);
  std::vector<std::unique_ptr<Host>> hosts;
  for (std::size_t i = 0; i < count; ++i) hosts.push_back(std::make_unique<Host>(keys));
  std::mt19937_64 random(1);
  const auto trip = [&] { return Micros{std::uniform_int_distribution<std::int64_t>(100, 1000)(random)}; };
  constexpr Micros kStep = 100us, kWarmUp = 2s, kMeasured = 10s;
  const SteadyTime start{1000s};
  std::int64_t admitted_before = 0, asked_before = 0;
  const auto sum = [&](auto member) {
    std::int64_t total = 0;
    for (const auto& host : hosts) total += (*host).*member;
    return total;
  };
  for (SteadyTime now = start; now < start + kWarmUp + kMeasured; now += kStep) {
    if (now == start + kWarmUp) {
      admitted_before = sum(&Host::admitted);
      asked_before = sum(&Host::asked);
    }
    for (std::size_t i = 0; i < count; ++i) {
      Host& host = *hosts[i];
      host.store.now = now;
      // Hosts differ by up to 200 µs in what they think it is.
      host.store.offset = Micros{static_cast<std::int64_t>(i % 5) * 100 - 200};
      host.store.uncertainty = 200us;
      while (!host.store.calls.empty() && host.store.calls.front().returns <= now) {
        if (!host.store.calls.front().answers)
          host.store.arrive(host.store.calls.front(), host.store.shard_now());
        host.store.deliver();
      }
      if ((now - start) % gap == Micros{static_cast<std::int64_t>(i) * kStep} % gap) {
        const store::Question question{
            limiter::Operation::take, definition.get(), "n1:x:", "k", 1, 1, now + 20ms};
        static_cast<void>(host.prefilter.ask(question, now));
      }
      host.prefilter.flush(now);
      for (auto& call : host.store.calls) {
        if (call.arrives != SteadyTime{}) continue;
        ++host.asked;
        call.arrives = now + trip();
        call.returns = call.arrives + trip();
      }
    }
    for (const auto& host : hosts) {
      for (auto& call : host->store.calls) {
        if (!call.answers && call.arrives <= now) host->store.arrive(call, host->store.shard_now());
      }
    }
  }
  const auto admitted = static_cast<double>(sum(&Host::admitted) - admitted_before);
  const auto asked = static_cast<double>(sum(&Host::asked) - asked_before);
  const double limit = static_cast<double>(rate.count) * static_cast<double>(kMeasured / rate.period);
  return {asked / admitted, admitted / limit};
}

TEST_CASE("fleet: 64 flooded hosts on one used up key ask little, and still pass all that the limit lets") {
  const Figures figures = flood(64, {100, 1s}, 100, 1ms);
  MESSAGE(figures.questions_per_admitted << " questions per admitted query, "
                                         << 100 * figures.admitted_of_limit << " % of the limit admitted");
  CHECK(figures.questions_per_admitted <= 10);
  CHECK(figures.admitted_of_limit >= 0.97);
  CHECK(figures.admitted_of_limit <= 1.001);
}

TEST_CASE("fleet: also where the limit lets through just one at a time") {
  const Figures figures = flood(64, {100, 1s}, 1, 1ms);
  MESSAGE(figures.questions_per_admitted << " questions per admitted query, "
                                         << 100 * figures.admitted_of_limit << " % of the limit admitted");
  CHECK(figures.questions_per_admitted <= 10);
  CHECK(figures.admitted_of_limit >= 0.97);
  CHECK(figures.admitted_of_limit <= 1.001);
}

TEST_CASE("fleet: one flooded host alone asks no more than once or twice for each that passes") {
  const Figures figures = flood(1, {100, 1s}, 100, 100us);
  MESSAGE(figures.questions_per_admitted << " questions per admitted query, "
                                         << 100 * figures.admitted_of_limit << " % of the limit admitted");
  CHECK(figures.questions_per_admitted <= 2);
  CHECK(figures.admitted_of_limit >= 0.97);
}

}  // namespace
}  // namespace allowd::sim
