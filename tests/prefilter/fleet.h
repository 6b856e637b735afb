// SPDX-License-Identifier: MIT
//
// A fleet in simulated time: every host has its own Prefilter, asks at a steady pace about one key, and
// reaches the store that all share over a network that takes its time.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/prefilter/prefilter.h"
#include "tests/prefilter/fake_shared_store.h"

namespace allowd::testing {

// Hosts before one shared store, with a network in between.
class Fleet {
 public:
  static constexpr limiter::Micros kStep{100};
  static constexpr limiter::Micros kThereAndBack{300};

  Fleet(std::size_t hosts, limiter::DefinitionPtr limit, std::int64_t lease,
        std::vector<store::Part> parts = {})
      : limit_(std::move(limit)), lease_(lease), parts_(std::move(parts)) {
    for (std::size_t i = 0; i < hosts; ++i) hosts_.push_back(std::make_unique<Host>(keys_, i));
  }

  // Every host is asked `queries` times a step for that long.
  void run(limiter::Micros time, int queries) {
    for (limiter::Micros passed{0}; passed < time; passed += kStep) {
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
  // What the store counts as used.
  std::int64_t used() { return used_of(limit_, kTag); }
  std::int64_t used_of(const limiter::DefinitionPtr& limit, const std::string& limit_tag) {
    SharedValue copy = keys_.of(limit_tag, "user");
    const auto now = hosts_.front()->store.shard_now();
    SharedAsked question;
    question.operation = limiter::Operation::peek;
    question.definition = limit;
    question.cost = 0;
    const auto decision = decide(copy, question, now, now).first.decision;
    return decision.capacity - decision.remaining;
  }

  std::int64_t admitted = 0;
  std::int64_t local = 0;  // of these, granted out of leases
  std::int64_t questions = 0;

 private:
  struct Host final : store::AnswerSink {
    Host(SharedKeys& keys, std::uint64_t number)
        : hash(store::KeyHasher::hash(number, "user")), store(keys, 4), prefilter(store, {}) {
      store.offset = std::chrono::seconds(1'700'000'000);
      prefilter.attach(*this);
    }
    Fate on_answer(std::uint64_t ticket, const store::Answer& answer, store::SteadyTime) override {
      open.erase(ticket);
      if (answer.decision.verdict == limiter::Verdict::ok) ++granted;
      return Fate::delivered;
    }
    bool is_waiting(std::uint64_t ticket) const override { return open.contains(ticket); }

    store::KeyHash hash;  // of the key, another one on each host
    FakeSharedStore store;
    prefilter::Prefilter prefilter;
    std::deque<store::SteadyTime> asked_at;
    std::set<std::uint64_t> open;
    std::uint64_t last = 0;
    std::int64_t granted = 0;
  };

  void ask(Host& host) {
    const store::Question question{limiter::Operation::take,
                                   limit_.get(),
                                   kTag,
                                   "user",
                                   1,
                                   ++host.last,
                                   now_ + std::chrono::milliseconds(20),
                                   lease_,
                                   nullptr,
                                   false,
                                   parts_,
                                   0,
                                   host.hash};
    const store::Answer answer = host.prefilter.ask(question, now_);
    if (answer.status == store::Answer::Status::promised) {
      host.open.insert(host.last);
    } else if (answer.decision.verdict == limiter::Verdict::ok) {
      ++admitted;
      ++local;
    }
    admitted += std::exchange(host.granted, 0);
  }

  static inline const std::string kTag = "n1:x:";
  limiter::DefinitionPtr limit_;
  std::int64_t lease_;
  std::vector<store::Part> parts_;
  SharedKeys keys_;
  std::vector<std::unique_ptr<Host>> hosts_;
  store::SteadyTime now_{std::chrono::seconds(1000)};
};

}  // namespace allowd::testing
