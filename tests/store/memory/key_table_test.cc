// SPDX-License-Identifier: MIT
#include "agent/store/memory/key_table.h"

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/support/printing.h"

namespace allowd::store {
namespace {

using namespace std::chrono_literals;
using limiter::Micros;
using limiter::TimePoint;

constexpr TimePoint at(Micros since_epoch) { return TimePoint{since_epoch}; }

class Hashes {
 public:
  explicit Hashes(std::uint64_t seed) : random_(seed) {}
  KeyHash next() { return {random_(), random_()}; }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

 private:
  std::mt19937_64 random_;
};

// Inserts a key that leaves at `leaves_at`; it has to fit.
void insert(KeyTable& table, const KeyHash& hash, TimePoint leaves_at, TimePoint now = at(0s)) {
  KeyEntry* entry = table.insert(hash, now);
  REQUIRE(entry != nullptr);
  entry->leaves_at = leaves_at;
  entry->state = {1, static_cast<std::int64_t>(hash.low & 0xffff), at(0s)};
}

TEST_CASE("key table: what was inserted is found, what was not is not") {
  KeyTable table(1000);
  Hashes hashes(1);
  std::vector<KeyHash> known;
  for (int i = 0; i < 500; ++i) {
    known.push_back(hashes.next());
    insert(table, known.back(), at(1h));
  }
  CHECK(table.size() == 500);
  for (const KeyHash& hash : known) {
    const KeyEntry* entry = table.find(hash);
    REQUIRE(entry != nullptr);
    CHECK(entry->state.used == static_cast<std::int64_t>(hash.low & 0xffff));
  }
  for (int i = 0; i < 500; ++i) CHECK(table.find(hashes.next()) == nullptr);
}

TEST_CASE("key table: keys that share half of their hash are apart") {
  KeyTable table(100);
  insert(table, {7, 1}, at(1h));
  insert(table, {7, 2}, at(1h));
  insert(table, {8, 1}, at(1h));
  CHECK(table.size() == 3);
  CHECK(table.find({7, 1}) != nullptr);
  CHECK(table.find({8, 2}) == nullptr);
}

TEST_CASE("key table: a full table refuses new keys and keeps the old ones") {
  KeyTable table(64);
  Hashes hashes(2);
  std::vector<KeyHash> known;
  for (int i = 0; i < 64; ++i) {
    known.push_back(hashes.next());
    insert(table, known.back(), at(1h));
  }
  CHECK(table.insert(hashes.next(), at(1min)) == nullptr);
  CHECK(table.size() == 64);
  for (const KeyHash& hash : known) CHECK(table.find(hash) != nullptr);
}

TEST_CASE("key table: a full table makes room by dropping keys that have left, and no others") {
  KeyTable table(64);
  Hashes hashes(3);
  const KeyHash left = hashes.next();
  insert(table, left, at(1min));
  std::vector<KeyHash> staying;
  for (int i = 0; i < 63; ++i) {
    staying.push_back(hashes.next());
    insert(table, staying.back(), at(1min + 1us));
  }
  const KeyHash late = hashes.next();
  CHECK(table.insert(late, at(1min - 1us)) == nullptr);
  CHECK(table.find(left) != nullptr);
  CHECK(table.insert(late, at(1min)) != nullptr);
  CHECK(table.find(left) == nullptr);
  CHECK(table.size() == 64);
  for (const KeyHash& hash : staying) CHECK(table.find(hash) != nullptr);
}

TEST_CASE("key table: says beforehand whether there is room") {
  KeyTable table(2);
  CHECK(table.has_room({1, 1}, at(0s)));
  CHECK(table.size() == 0);
  insert(table, {1, 1}, at(1min));
  insert(table, {2, 2}, at(2min));
  CHECK_FALSE(table.has_room({3, 3}, at(1min - 1us)));
  CHECK(table.size() == 2);
  CHECK(table.has_room({3, 3}, at(1min)));
  CHECK(table.insert({3, 3}, at(1min)) != nullptr);
  CHECK(table.find({1, 1}) == nullptr);
}

TEST_CASE("key table: a table of one key works") {
  KeyTable table(1);
  insert(table, {1, 1}, at(1s));
  CHECK(table.insert({2, 2}, at(0s)) == nullptr);
  table.erase({1, 1});
  CHECK(table.size() == 0);
  insert(table, {2, 2}, at(1s));
  CHECK(table.find({2, 2}) != nullptr);
}

TEST_CASE("key table: erasing a key twice, or one that is not there, is harmless") {
  KeyTable table(10);
  insert(table, {1, 1}, at(1s));
  table.erase({2, 2});
  CHECK(table.size() == 1);
  table.erase({1, 1});
  table.erase({1, 1});
  CHECK(table.size() == 0);
  CHECK(table.find({1, 1}) == nullptr);
}

TEST_CASE("key table: sweeping goes round all segments, a few at a time") {
  KeyTable table(20'000);
  REQUIRE(table.segments() > 4);
  Hashes hashes(4);
  for (int i = 0; i < 10'000; ++i) insert(table, hashes.next(), at(1min));
  std::set<std::size_t> sizes;
  for (std::size_t i = 0; i < table.segments(); ++i) {
    sizes.insert(table.size());
    table.sweep(1, at(1min));
  }
  CHECK(sizes.size() == table.segments());  // each step dropped some
  CHECK(table.size() == 0);
}

TEST_CASE("key table: sweeping more segments than there are looks at each once") {
  KeyTable table(100);
  insert(table, {1, 1}, at(1min));
  insert(table, {2, 2}, at(2min));
  table.sweep(1000, at(1min));
  CHECK(table.size() == 1);
  CHECK(table.find({2, 2}) != nullptr);
}

TEST_CASE("key table: a table that shrinks and grows again loses nothing") {
  KeyTable table(4096);
  Hashes hashes(5);
  for (int round = 0; round < 5; ++round) {
    const TimePoint now = at(round * 1h);
    std::vector<KeyHash> staying;
    for (int i = 0; i < 2000; ++i) {
      const bool stays = i % 100 == 0;
      const KeyHash hash = hashes.next();
      insert(table, hash, stays ? now + 50min : now + 1min, now);
      if (stays) staying.push_back(hash);
    }
    table.sweep(table.segments(), now + 1min);
    CHECK(table.size() == staying.size());
    for (const KeyHash& hash : staying) CHECK(table.find(hash) != nullptr);
    table.sweep(table.segments(), now + 50min);
    CHECK(table.size() == 0);
  }
}

TEST_CASE("key table: with three hundred thousand keys no insert moves more than four thousand") {
  for (const std::size_t max_keys : {std::size_t{300'000}, std::size_t{262'144}}) {
    CAPTURE(max_keys);
    KeyTable table(max_keys);
    Hashes hashes(6);
    for (std::size_t i = 0; i < max_keys; ++i) insert(table, hashes.next(), at(1h));
    CHECK(table.size() == max_keys);
    CHECK(table.insert(hashes.next(), at(0s)) == nullptr);
    CHECK(table.longest_growth_step() > 0);
    CHECK(table.longest_growth_step() < 4096);
  }
}

TEST_CASE("key table: random inserts, erases and sweeps agree with a map") {
  struct Less {
    bool operator()(const KeyHash& a, const KeyHash& b) const {
      return a.low != b.low ? a.low < b.low : a.high < b.high;
    }
  };
  constexpr std::size_t kMaxKeys = 6000;
  KeyTable table(kMaxKeys);
  std::map<KeyHash, TimePoint, Less> oracle;
  std::vector<KeyHash> seen;
  Hashes hashes(7);
  TimePoint now = at(0s);
  for (int step = 0; step < 60'000; ++step) {
    now += Micros{static_cast<std::int64_t>(hashes.below(2000))};
    const bool use_known = !seen.empty() && hashes.below(2) == 0;
    const KeyHash hash = use_known ? seen[hashes.below(seen.size())] : hashes.next();
    const bool is_known = oracle.contains(hash);
    REQUIRE((table.find(hash) != nullptr) == is_known);
    switch (hashes.below(8)) {
      case 0:
        table.erase(hash);
        oracle.erase(hash);
        break;
      case 1:
        if (hashes.below(200) != 0) break;
        table.sweep(table.segments(), now);
        std::erase_if(oracle, [&](const auto& entry) { return entry.second <= now; });
        break;
      default: {
        if (is_known || oracle.size() == kMaxKeys) break;
        KeyEntry* entry = table.insert(hash, now);
        REQUIRE(entry != nullptr);
        entry->leaves_at = now + Micros{static_cast<std::int64_t>(hashes.below(8'000'000))};
        oracle[hash] = entry->leaves_at;
        seen.push_back(hash);
        break;
      }
    }
    REQUIRE(table.size() == oracle.size());
  }
  CHECK(oracle.size() > 1000);
}

}  // namespace
}  // namespace allowd::store
