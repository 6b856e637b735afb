// SPDX-License-Identifier: MIT
#include "agent/store/redis/topology/rendezvous.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace allowd::store {
namespace {

constexpr std::size_t kKeys = 40'000;

// As Redis has them: alike in all but a few bytes.
std::string key_at(std::size_t number) { return "allowd:{5f1c}:n3:api:user-" + std::to_string(number); }

std::vector<std::string> names_of(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back("redis-" + std::to_string(i));
  return names;
}

std::vector<std::string> chosen(const std::vector<std::string>& names) {
  const Rendezvous rendezvous(names);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < kKeys; ++i) all.push_back(names[rendezvous.choose(key_at(i))]);
  return all;
}

TEST_CASE("rendezvous: a single name keeps everything") {
  const Rendezvous rendezvous(names_of(1));
  CHECK(rendezvous.size() == 1);
  CHECK(rendezvous.choose("") == 0);
  CHECK(rendezvous.choose("k") == 0);
}

TEST_CASE("rendezvous: every name keeps its share") {
  for (const std::size_t count : {2U, 3U, 7U, 64U}) {
    CAPTURE(count);
    const auto all = chosen(names_of(count));
    const double share = static_cast<double>(kKeys) / static_cast<double>(count);
    for (const std::string& name : names_of(count)) {
      const auto kept = static_cast<double>(std::count(all.begin(), all.end(), name));
      CHECK(std::abs(kept - share) < 5 * std::sqrt(share));  // five standard deviations
    }
  }
}

TEST_CASE("rendezvous: names that differ in a single byte or bit share as well as any") {
  for (const auto& names : std::vector<std::vector<std::string>>{
           {"a", "b", "c"}, {"1", "2", "3"}, {"10.0.0.1", "10.0.0.2", "10.0.0.3"}, {"x", "xx", "xxx"}}) {
    CAPTURE(names[0]);
    const auto all = chosen(names);
    const double share = static_cast<double>(kKeys) / 3;
    for (const std::string& name : names) {
      const auto kept = static_cast<double>(std::count(all.begin(), all.end(), name));
      CHECK(std::abs(kept - share) < 5 * std::sqrt(share));
    }
  }
}

TEST_CASE("rendezvous: the order of the names moves no key") {
  std::vector<std::string> names = names_of(5);
  const auto before = chosen(names);
  std::reverse(names.begin(), names.end());
  CHECK(chosen(names) == before);
  std::swap(names[0], names[2]);
  CHECK(chosen(names) == before);
}

TEST_CASE("rendezvous: a name that comes takes its share and moves nothing else") {
  for (const std::size_t count : {1U, 2U, 5U, 20U}) {
    CAPTURE(count);
    const auto before = chosen(names_of(count));
    auto names = names_of(count);
    names.insert(names.begin(), "new");
    const auto after = chosen(names);
    std::size_t moved = 0;
    for (std::size_t i = 0; i < kKeys; ++i) {
      if (after[i] == before[i]) continue;
      ++moved;
      REQUIRE(after[i] == "new");
    }
    const double share = static_cast<double>(kKeys) / static_cast<double>(count + 1);
    CHECK(std::abs(static_cast<double>(moved) - share) < 5 * std::sqrt(share));
  }
}

TEST_CASE("rendezvous: the keys of a name that goes are shared by all that stay") {
  const auto before = chosen(names_of(4));
  const std::vector<std::string> left = {"redis-0", "redis-1", "redis-3"};
  const auto after = chosen(left);
  std::vector<std::size_t> gained(left.size());
  for (std::size_t i = 0; i < kKeys; ++i) {
    if (before[i] != "redis-2") {
      REQUIRE(after[i] == before[i]);
    } else {
      ++gained[static_cast<std::size_t>(std::find(left.begin(), left.end(), after[i]) - left.begin())];
    }
  }
  const double share = static_cast<double>(kKeys) / 12;
  for (const std::size_t keys : gained)
    CHECK(std::abs(static_cast<double>(keys) - share) < 5 * std::sqrt(share));
}

TEST_CASE("rendezvous: every pair of a user's keys is placed independently") {
  // Keys of one user under two limits: about one pair in three meets on a server.
  const auto names = names_of(3);
  const Rendezvous rendezvous(names);
  std::size_t met = 0;
  for (std::size_t i = 0; i < kKeys; ++i) {
    const std::string user = std::to_string(i);
    met += rendezvous.choose("allowd:{0000}:n3:api:" + user) ==
           rendezvous.choose("allowd:{0000}:n4:page:" + user);
  }
  const double share = static_cast<double>(kKeys) / 3;
  CHECK(std::abs(static_cast<double>(met) - share) < 5 * std::sqrt(share));
}

TEST_CASE("rendezvous: the vectors in OPERATING.md hold") {
  std::ifstream document(ALLOWD_OPERATING_DOCUMENT);
  REQUIRE(document.good());
  const std::vector<std::string> three = {"a", "b", "c"};
  const std::vector<std::string> four = {"d", "c", "b", "a"};
  std::size_t rows = 0;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("| `allowd:{")) continue;
    std::vector<std::string> cells;  // what stands between backticks
    std::istringstream words(line);
    for (std::string word; std::getline(words, word, '`');) cells.push_back(word);
    REQUIRE(cells.size() == 7);
    CAPTURE(cells[1]);
    CHECK(three[Rendezvous(three).choose(cells[1])] == cells[3]);
    CHECK(four[Rendezvous(four).choose(cells[1])] == cells[5]);
    ++rows;
  }
  CHECK(rows >= 7);
}

TEST_CASE("rendezvous: of a rank the next best, and past the last one the first again") {
  const std::vector<std::string> names = {"a", "b", "c"};
  const Rendezvous all(names);
  for (int number = 0; number < 200; ++number) {
    const std::string key = "key " + std::to_string(number);
    const std::set<std::size_t> chosen = {all.choose(key, 0), all.choose(key, 1), all.choose(key, 2)};
    CHECK(chosen.size() == 3);
    CHECK(all.choose(key, 0) == all.choose(key));
    CHECK(all.choose(key, 4) == all.choose(key, 1));
    // Without the first, the second is first.
    std::vector<std::string> others = names;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(all.choose(key)));
    CHECK(others[Rendezvous(others).choose(key)] == names[all.choose(key, 1)]);
  }
}

}  // namespace
}  // namespace allowd::store
