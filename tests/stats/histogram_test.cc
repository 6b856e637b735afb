// SPDX-License-Identifier: MIT
#include "agent/stats/histogram.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/printing.h"

namespace allowd::stats {
namespace {

TEST_CASE("histogram: an empty one has no values") {
  const Histogram histogram;
  CHECK(histogram.count() == 0);
  CHECK(histogram.sum() == 0);
  CHECK(histogram.max() == 0);
  CHECK(histogram.quantile(0.5) == 0);
  CHECK(histogram.quantile(1) == 0);
  CHECK(histogram.count_below_power(36) == 0);
}

TEST_CASE("histogram: small values are exact") {
  Histogram histogram;
  for (std::int64_t value = 0; value < 16; ++value) histogram.record(value);
  CHECK(histogram.count() == 16);
  CHECK(histogram.sum() == 120);
  CHECK(histogram.max() == 15);
  for (std::uint64_t rank = 1; rank <= 16; ++rank)
    CHECK(histogram.quantile(static_cast<double>(rank) / 16) == rank - 1);
  CHECK(histogram.quantile(0) == 0);
}

TEST_CASE("histogram: many equal values may be recorded at once") {
  Histogram histogram;
  histogram.record(5, 1000);
  histogram.record(100, 0);
  CHECK(histogram.count() == 1000);
  CHECK(histogram.sum() == 5000);
  CHECK(histogram.quantile(0.999) == 5);
}

TEST_CASE("histogram: negative values count as 0 and enormous ones as the largest") {
  Histogram histogram;
  histogram.record(-5);
  CHECK(histogram.quantile(1) == 0);
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 36) - 1;
  histogram.record(INT64_MAX);
  histogram.record(static_cast<std::int64_t>(kMost) + 1);
  CHECK(histogram.max() == kMost);
  CHECK(histogram.quantile(1) == kMost);
  CHECK(histogram.count_below_power(36) == 3);
  CHECK(histogram.count_below_power(63) == 3);
}

TEST_CASE("histogram: a quantile is never too low and at most an eighth too high") {
  std::mt19937_64 random(4);
  for (int round = 0; round < 50; ++round) {
    Histogram histogram;
    std::vector<std::uint64_t> values;
    const unsigned shift = static_cast<unsigned>(28 + random() % 30);
    for (int i = 0; i < 500; ++i) {
      values.push_back(random() >> shift >> (random() % 8));
      histogram.record(static_cast<std::int64_t>(values.back()));
    }
    std::sort(values.begin(), values.end());
    for (const double share : {0.001, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      const auto rank = static_cast<std::size_t>(std::ceil(share * 500));
      const std::uint64_t truth = std::min<std::uint64_t>(values[rank - 1], (std::uint64_t{1} << 36) - 1);
      const std::uint64_t told = histogram.quantile(share);
      CHECK(told >= truth);
      CHECK(told <= truth + truth / 8);
    }
  }
}

TEST_CASE("histogram: no quantile is above the largest value") {
  Histogram histogram;
  histogram.record(1000);
  CHECK(histogram.quantile(0.5) == 1000);
  CHECK(histogram.quantile(1) == 1000);
}

TEST_CASE("histogram: values below a power of two are counted exactly") {
  std::mt19937_64 random(6);
  Histogram histogram;
  std::vector<std::uint64_t> values;
  for (unsigned power = 0; power < 36; ++power) {
    for (const std::int64_t offset : {-1, 0, 1}) {
      const auto value = (std::int64_t{1} << power) + offset;
      values.push_back(static_cast<std::uint64_t>(value));
      histogram.record(value);
    }
  }
  for (int i = 0; i < 1000; ++i) {
    values.push_back(random() >> (28 + random() % 36));
    histogram.record(static_cast<std::int64_t>(values.back()));
  }
  for (unsigned power = 0; power <= 36; ++power) {
    const auto truth = std::count_if(values.begin(), values.end(),
                                     [&](std::uint64_t value) { return value < std::uint64_t{1} << power; });
    CHECK(histogram.count_below_power(power) == static_cast<std::uint64_t>(truth));
  }
}

}  // namespace
}  // namespace allowd::stats
