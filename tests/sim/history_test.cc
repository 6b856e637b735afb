// SPDX-License-Identifier: MIT
#include "tests/sim/history.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

namespace allowd::sim {
namespace {

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// ALLOWD_HISTORIES=1000000 for more, ALLOWD_SEED to begin elsewhere.
TEST_CASE("fleet: no random history breaks a promise") {
  const std::uint64_t first = number_from("ALLOWD_SEED", 1);
  const std::uint64_t count = number_from("ALLOWD_HISTORIES", 4000);
  Findings all;
  int problems = 0;
  for (std::uint64_t seed = first; seed < first + count && problems < 5; ++seed) {
    const Findings found = live_through(seed);
    if (!found.problem.empty()) {
      ++problems;
      MESSAGE(found.problem);
    }
    all.queries += found.queries;
    all.local_refusals += found.local_refusals;
    all.excused += found.excused;
    all.held += found.held;
    all.granted += found.granted;
    all.given_back += found.given_back;
    all.bounds_checked += found.bounds_checked;
  }
  CHECK(problems == 0);
  MESSAGE(count << " histories, " << all.queries << " queries: " << all.granted << " granted, "
                << all.local_refusals << " refused locally (" << all.excused << " excused by a raise, "
                << all.held << " held or crowded out), " << all.given_back << " permits given back, "
                << all.bounds_checked << " charges held against a bound");
  if (count < 1000) return;
  // All of it was really exercised.
  const std::int64_t queries = all.queries;
  CHECK(all.local_refusals > queries / 20);
  CHECK(all.granted > queries / 20);
  CHECK(all.excused < all.local_refusals / 4);
  CHECK(all.given_back > 0);
  CHECK(all.bounds_checked > queries / 20);
}

}  // namespace
}  // namespace allowd::sim
