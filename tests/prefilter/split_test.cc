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

}  // namespace
}  // namespace allowd::prefilter
