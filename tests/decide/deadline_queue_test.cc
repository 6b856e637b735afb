// SPDX-License-Identifier: MIT
#include "agent/decide/deadline_queue.h"

#include <chrono>
#include <map>
#include <random>
#include <vector>

#include "tests/support/printing.h"

namespace allowd::decide {
namespace {

using namespace std::chrono_literals;
using store::SteadyTime;
using Slot = DeadlineQueue::Slot;

constexpr SteadyTime at(limiter::Micros since_start) { return SteadyTime{since_start}; }

TEST_CASE("deadline queue: the earliest comes first, whatever the order of coming") {
  DeadlineQueue queue;
  CHECK(queue.is_empty());
  queue.push(4, at(30ms));
  queue.push(0, at(10ms));
  queue.push(9, at(20ms));
  CHECK(queue.size() == 3);
  for (const Slot expected : {0U, 9U, 4U}) {
    CHECK(queue.next() == expected);
    queue.remove(expected);
  }
  CHECK(queue.is_empty());
}

TEST_CASE("deadline queue: a slot leaves from any place, and may come again") {
  DeadlineQueue queue;
  for (Slot slot = 0; slot < 7; ++slot) queue.push(slot, at(limiter::Micros{10 * (slot + 1)}));
  queue.remove(0);
  queue.remove(6);
  queue.remove(3);
  CHECK(queue.next() == 1);
  queue.push(3, at(1us));
  CHECK(queue.next() == 3);
  CHECK(queue.next_deadline() == at(1us));
  CHECK(queue.size() == 5);
}

TEST_CASE("deadline queue: equal deadlines are all served") {
  DeadlineQueue queue;
  for (Slot slot = 0; slot < 5; ++slot) queue.push(slot, at(5ms));
  std::vector<bool> seen(5);
  while (!queue.is_empty()) {
    CHECK(queue.next_deadline() == at(5ms));
    seen[queue.next()] = true;
    queue.remove(queue.next());
  }
  CHECK(seen == std::vector<bool>(5, true));
}

TEST_CASE("deadline queue: random pushes and removals agree with a multimap") {
  DeadlineQueue queue;
  std::multimap<SteadyTime, Slot> oracle;
  constexpr Slot kSlots = 300;
  std::vector<std::multimap<SteadyTime, Slot>::iterator> queued(kSlots, oracle.end());
  std::mt19937_64 random(3);
  for (int step = 0; step < 100'000; ++step) {
    const auto slot = static_cast<Slot>(random() % kSlots);
    if (queued[slot] == oracle.end()) {
      const SteadyTime deadline = at(limiter::Micros{static_cast<std::int64_t>(random() % 500)});
      queue.push(slot, deadline);
      queued[slot] = oracle.emplace(deadline, slot);
    } else {
      // Mostly some slot, at times the one that is due.
      const Slot leaving = random() % 3 == 0 ? queue.next() : slot;
      queue.remove(leaving);
      oracle.erase(queued[leaving]);
      queued[leaving] = oracle.end();
    }
    REQUIRE(queue.size() == oracle.size());
    REQUIRE(queue.is_empty() == oracle.empty());
    if (oracle.empty()) continue;
    REQUIRE(queue.next_deadline() == oracle.begin()->first);
    REQUIRE(queued[queue.next()]->first == queue.next_deadline());
  }
}

}  // namespace
}  // namespace allowd::decide
