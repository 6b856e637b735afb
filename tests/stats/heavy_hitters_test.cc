// SPDX-License-Identifier: MIT
#include "agent/stats/heavy_hitters.h"

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/support/printing.h"

namespace allowd::stats {
namespace {

constexpr std::size_t kCounters = HeavyHitters::kCounters;

// Spreads small numbers over all bits, as the ids of real keys are.
constexpr std::uint64_t id_of(std::uint64_t number) {
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

// A sketch beside the truth.
struct Scene {
  void count(std::uint64_t id) {
    sketch->count(id, "api", std::to_string(id));
    ++truth[id];
  }

  void check_guarantee() const {
    std::uint64_t total = 0, sum = 0;
    for (const auto& [id, times] : truth) total += times;
    CHECK(sketch->total() == total);
    CHECK(sketch->floor() <= total / kCounters);
    for (std::size_t place = 0; place < sketch->size(); ++place) {
      const HeavyHitters::Entry entry = sketch->entry(place);
      CAPTURE(entry.id);
      const std::uint64_t times = truth.at(entry.id);
      CHECK(entry.count >= times);
      CHECK(entry.count - entry.error <= times);
      CHECK(entry.error <= sketch->floor());
      CHECK(entry.key.kept() == std::to_string(entry.id));
      CHECK(sketch->find(entry.id) == place);
      sum += entry.count;
    }
    CHECK(sum == total);
    for (const auto& [id, times] : truth) {
      CAPTURE(id);
      if (times > total / kCounters) CHECK(sketch->find(id).has_value());
      if (!sketch->find(id)) CHECK(times <= sketch->floor());
    }
  }

  std::unique_ptr<HeavyHitters> sketch = std::make_unique<HeavyHitters>();
  std::unordered_map<std::uint64_t, std::uint64_t> truth;
};

TEST_CASE("heavy hitters: an empty sketch knows no key") {
  const Scene scene;
  CHECK(scene.sketch->size() == 0);
  CHECK(scene.sketch->total() == 0);
  CHECK(scene.sketch->floor() == 0);
  CHECK_FALSE(scene.sketch->find(0).has_value());
}

TEST_CASE("heavy hitters: as many keys as counters are counted exactly") {
  Scene scene;
  for (std::uint64_t key = 0; key < kCounters; ++key) {
    for (std::uint64_t i = 0; i <= key; ++i) scene.count(id_of(key));
  }
  scene.check_guarantee();
  CHECK(scene.sketch->size() == kCounters);
  CHECK(scene.sketch->floor() == 1);
  for (std::size_t place = 0; place < kCounters; ++place) CHECK(scene.sketch->entry(place).error == 0);
}

TEST_CASE("heavy hitters: a new key takes over the smallest count as its error") {
  Scene scene;
  for (std::uint64_t key = 0; key < kCounters; ++key) {
    for (int i = 0; i < (key == 7 ? 3 : 5); ++i) scene.count(id_of(key));
  }
  scene.count(id_of(1000));
  CHECK_FALSE(scene.sketch->find(id_of(7)).has_value());
  const auto place = scene.sketch->find(id_of(1000));
  REQUIRE(place.has_value());
  CHECK(scene.sketch->entry(*place).count == 4);
  CHECK(scene.sketch->entry(*place).error == 3);
  CHECK(scene.sketch->size() == kCounters);
  scene.check_guarantee();
}

TEST_CASE("heavy hitters: the bounds hold on Zipf streams, flat and steep") {
  std::mt19937_64 random(11);
  for (const double exponent : {0.5, 0.8, 1.0, 1.3, 2.0}) {
    CAPTURE(exponent);
    std::vector<double> weights;
    for (int rank = 1; rank <= 20'000; ++rank) weights.push_back(std::pow(rank, -exponent));
    std::discrete_distribution<std::uint64_t> zipf(weights.begin(), weights.end());
    Scene scene;
    for (int i = 0; i < 200'000; ++i) scene.count(id_of(zipf(random)));
    scene.check_guarantee();
  }
}

TEST_CASE("heavy hitters: a heavy key survives a flood of keys that come once") {
  Scene scene;
  std::uint64_t next = 1;
  for (int i = 0; i < 500; ++i) {
    // One of 500 occurrences, which is more than 1/512, and always with the whole table swept in between.
    for (int j = 0; j < 499; ++j) scene.count(id_of(next++));
    scene.count(id_of(0));
  }
  REQUIRE(scene.sketch->find(id_of(0)).has_value());
  scene.check_guarantee();
}

TEST_CASE("heavy hitters: the bounds hold when keys come in turn, one more than there are counters") {
  Scene scene;
  for (int round = 0; round < 100; ++round) {
    for (std::uint64_t key = 0; key <= kCounters; ++key) scene.count(id_of(key));
  }
  scene.check_guarantee();
}

TEST_CASE("heavy hitters: the bounds hold at every step, also where ids share a slot") {
  std::mt19937_64 random(12);
  Scene scene;
  // Their upper bits, which choose the slot, have 16 values: the longest probes, wrapping around the end.
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t key = random() % (random() % 4 == 0 ? 2000 : 50);
    scene.count((key % 16 + 2040) << 53 | key);
    if (i % 997 == 0) scene.check_guarantee();
  }
  scene.check_guarantee();
}

TEST_CASE("heavy hitters: large counts are no trouble for a late new key") {
  Scene scene;
  for (int i = 0; i < 300; ++i) {
    for (std::uint64_t key = 0; key < kCounters; ++key) scene.count(id_of(key));
  }
  for (std::uint64_t key = 0; key < 3 * kCounters; ++key) scene.count(id_of(100'000 + key));
  scene.check_guarantee();
  CHECK(scene.sketch->floor() == 303);
}

TEST_CASE("heavy hitters: a cleared sketch counts like a new one") {
  Scene scene;
  for (std::uint64_t key = 0; key < 2000; ++key) scene.count(id_of(key));
  scene.sketch->clear();
  scene.truth.clear();
  CHECK(scene.sketch->size() == 0);
  CHECK_FALSE(scene.sketch->find(id_of(1999)).has_value());
  for (std::uint64_t key = 1500; key < 3000; ++key) scene.count(id_of(key));
  scene.check_guarantee();
}

TEST_CASE("heavy hitters: names may be any bytes, and the first 64 are kept") {
  HeavyHitters sketch;
  const std::string binary("a\0\n\xff\"", 5);
  const std::string exactly(64, 'x');
  const std::string longer = exactly + "y";
  sketch.count(1, binary, std::string_view(binary));
  sketch.count(2, longer, std::string_view(exactly));
  sketch.count(3, "", std::string_view());
  CHECK(sketch.entry(0).limit.kept() == binary);
  CHECK(sketch.entry(0).key.kept() == binary);
  CHECK(sketch.entry(1).limit.kept() == exactly);
  CHECK(sketch.entry(1).limit.is_cut());
  CHECK(sketch.entry(1).key.kept() == exactly);
  CHECK_FALSE(sketch.entry(1).key.is_cut());
  CHECK(sketch.entry(2).key.kept().empty());
}

TEST_CASE("heavy hitters: memory is what the header says") { CHECK(sizeof(HeavyHitters) <= 88 * 1024); }

}  // namespace
}  // namespace allowd::stats
