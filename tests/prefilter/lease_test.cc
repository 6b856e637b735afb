// SPDX-License-Identifier: MIT
#include "agent/prefilter/lease.h"
#include "agent/prefilter/prefilter.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/prefilter/fake_shared_store.h"
#include "tests/support/printing.h"

namespace allowd::prefilter {
namespace {

using namespace std::chrono_literals;
using limiter::DefinitionPtr;
using limiter::Micros;
using limiter::Operation;
using store::Answer;
using testing::FakeSharedStore;

constexpr SteadyTime kStart{1000s};

TEST_CASE("lease: grants what is left, the oldest first, and what has lived a second goes back once") {
  Lease lease(100);
  CHECK_FALSE(lease.take(1, kStart));
  lease.add(10, kStart);
  lease.add(5, kStart + 600ms);
  CHECK(lease.left(kStart + 600ms) == 15);
  CHECK(lease.take(4, kStart + 700ms));
  CHECK_FALSE(lease.take(12, kStart + 700ms));
  CHECK(lease.next_expiry() == kStart + 1s);
  CHECK(lease.left(kStart + 1s) == 5);
  CHECK_FALSE(lease.take(6, kStart + 1s));
  CHECK(lease.expire(kStart + 1s) == 6);
  CHECK(lease.expire(kStart + 1s) == 0);
  CHECK(lease.expire(kStart + 1600ms) == 5);
  CHECK(lease.is_over(kStart + 1600ms));
}

TEST_CASE("lease: what is added over and over ends no later than what it is added to") {
  Lease lease(100);
  std::int64_t added = 0;
  for (int i = 0; i < 10; ++i, added += 3) lease.add(3, kStart + i * 50ms);
  CHECK(lease.left(kStart + 500ms) == added);
  CHECK(lease.left(kStart + 1150ms) == 0);
  CHECK(lease.expire(kStart + 1150ms) == added);
}

TEST_CASE("lease: its size follows the demand, and never is more outstanding than may be") {
  Lease lease(100);
  CHECK(lease.next_size(1000, kStart) == 100);
  CHECK(lease.next_size(60, kStart) == 60);
  lease.add(100, kStart);
  CHECK(lease.next_size(1000, kStart) == 0);
  CHECK(lease.take(80, kStart + 25ms));
  CHECK(lease.runs_low(kStart + 25ms));
  // 80 in 25 ms are 320 in 100 ms: halfway there, less what is left.
  CHECK(lease.next_size(1000, kStart + 25ms) == 210 - 20);
  CHECK(lease.next_size(50, kStart + 25ms) == 30);
  // Demand that ends lets it shrink.
  std::int64_t size = 1000;
  for (int i = 1; i < 20; ++i) size = lease.next_size(1000, kStart + 1s + i * 100ms);
  CHECK(size <= 1);
}

TEST_CASE("lease: a burst after a long pause is no demand") {
  CHECK(Lease::demand(1000, 1h) == 0);
  CHECK(Lease::demand(10, 1us) == 1000);
  CHECK(Lease::demand(1'000'000, 1s) == 100'000);
}

// Hosts with leases before one store, with a network in between.
class Fleet {
 public:
  static constexpr Micros kStep = 100us;
  static constexpr Micros kThereAndBack = 300us;

  Fleet(std::size_t hosts, DefinitionPtr limit, std::int64_t lease)
      : limit_(std::move(limit)), lease_(lease) {
    for (std::size_t i = 0; i < hosts; ++i) hosts_.push_back(std::make_unique<Host>(keys_));
  }

  // Every host is asked `queries` times a step for that long.
  void run(Micros time, int queries) {
    for (Micros passed{0}; passed < time; passed += kStep) {
      now_ += kStep;
      for (auto& host : hosts_) {
        host->store.now = now_;
        while (!host->store.calls.empty() && host->asked_at.front() + kThereAndBack <= now_) {
          host->asked_at.pop_front();
          host->store.answer();
        }
        for (int i = 0; i < queries; ++i) ask(*host);
        host->prefilter.flush(now_);
        host->store.flush();
        while (host->asked_at.size() < host->store.calls.size()) {
          host->asked_at.push_back(now_);
          ++questions;
        }
      }
    }
  }
  void end_leases() {
    for (auto& host : hosts_) {
      host->store.now = now_;
      host->prefilter.end_leases(now_);
      while (!host->store.calls.empty()) host->store.answer();
      host->asked_at.clear();
    }
  }
  std::int64_t used() {
    testing::SharedValue copy = keys_.of(kTag, "user");
    const auto now = hosts_.front()->store.shard_now();
    const auto [answer, charged] =
        testing::decide(copy, {Operation::peek, limit_, kTag, "user", 0}, now, now);
    return answer.decision.capacity - answer.decision.remaining;
  }

  std::int64_t admitted = 0;
  std::int64_t local = 0;  // of these, granted out of leases
  std::int64_t questions = 0;

 private:
  struct Host final : store::AnswerSink {
    explicit Host(testing::SharedKeys& keys) : store(keys, 1), prefilter(store, {}) {
      store.offset = 1'700'000'000s;
      prefilter.attach(*this);
    }
    Fate on_answer(std::uint64_t ticket, const Answer& answer, SteadyTime) override {
      open.erase(ticket);
      if (answer.decision.verdict == limiter::Verdict::ok) ++granted;
      return Fate::delivered;
    }
    bool is_waiting(std::uint64_t ticket) const override { return open.contains(ticket); }

    FakeSharedStore store;
    Prefilter prefilter;
    std::deque<SteadyTime> asked_at;
    std::set<std::uint64_t> open;
    std::uint64_t last = 0;
    std::int64_t granted = 0;
  };

  void ask(Host& host) {
    const store::Question question{Operation::take, limit_.get(), kTag,  "user", 1,
                                   ++host.last,     now_ + 20ms,  lease_};
    const Answer answer = host.prefilter.ask(question, now_);
    if (answer.status == Answer::Status::promised) {
      host.open.insert(host.last);
    } else if (answer.decision.verdict == limiter::Verdict::ok) {
      ++admitted;
      ++local;
    }
    admitted += std::exchange(host.granted, 0);
  }

  static inline const std::string kTag = "n1:x:";
  DefinitionPtr limit_;
  std::int64_t lease_;
  testing::SharedKeys keys_;
  std::vector<std::unique_ptr<Host>> hosts_;
  SteadyTime now_ = kStart;
};

DefinitionPtr bucket(std::int64_t count, Micros period, std::int64_t burst) {
  return *limiter::Definition::make({{"", *limiter::TokenBucket::make({count, period}, burst), false}},
                                    false);
}

TEST_CASE("lease: one hot allowed key costs the store next to nothing") {
  Fleet fleet(1, bucket(1'000'000, 1s, 1'000'000), 50'000);
  fleet.run(1s, 20);
  CHECK(fleet.admitted > 199'000);
  CHECK(fleet.local > 198'000);
  CHECK(fleet.questions <= 50);
}

TEST_CASE("lease: hosts under steady demand use the limit up, and pass it by no more than their leases") {
  constexpr std::int64_t kRate = 20'000, kBurst = 20'000, kLease = 1000;
  Fleet fleet(4, bucket(kRate, 1s, kBurst), kLease);
  fleet.run(1s, 4);  // 160,000 a second ask
  const std::int64_t before = fleet.admitted;
  CHECK(before <= kBurst + kRate + 4 * kLease);
  fleet.run(5s, 4);
  const std::int64_t admitted = fleet.admitted - before;
  CHECK(admitted >= 5 * kRate * 97 / 100);
  CHECK(admitted <= 5 * kRate + 4 * kLease);
}

TEST_CASE("lease: every permit is granted once, or goes back") {
  // Nothing comes back within the test: what was not admitted is still there at the end.
  Fleet fleet(4, bucket(1, 1h, 500'000), 20'000);
  fleet.run(300ms, 10);
  CHECK(fleet.local > 0);
  CHECK(fleet.used() > fleet.admitted);  // some has been taken ahead
  fleet.run(2500ms, 0);
  fleet.end_leases();
  CHECK(fleet.used() == fleet.admitted);
  fleet.run(300ms, 10);
  fleet.run(1s, 0);
  fleet.end_leases();
  CHECK(fleet.used() == fleet.admitted);
}

TEST_CASE("lease: a bucket that is drained with leases admits exactly what it holds") {
  Fleet fleet(4, bucket(1, 24h, 30'000), 1500);
  fleet.run(3s, 10);
  CHECK(fleet.admitted == 30'000);
}

}  // namespace
}  // namespace allowd::prefilter
