// SPDX-License-Identifier: MIT
#include "agent/store/redis/topology/key_groups.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace allowd::store {
namespace {

// How many groups each of `nodes` keeps that share the slots out evenly.
std::vector<int> groups_of(std::uint32_t nodes) {
  const KeyGroups groups;
  std::vector<int> kept(nodes);
  for (std::uint32_t group = 0; group < KeyGroups::kGroups; ++group)
    ++kept[groups.slot(group) * nodes / kSlots];
  return kept;
}

TEST_CASE("key groups: slots are those of the Cluster specification") {
  CHECK(slot_of_tag("123456789") == 0x31C3);  // the specification's own check of its CRC
  CHECK(slot_of_tag("") == 0);
  // As CLUSTER KEYSLOT documents them.
  CHECK(slot_of_tag("somekey") == 11'058);
  CHECK(slot_of_tag("hash_tag") == 2515);
}

TEST_CASE("key groups: each has a slot in its own part of all slots") {
  const KeyGroups groups;
  for (std::uint32_t group = 0; group < KeyGroups::kGroups; ++group) {
    CHECK(groups.slot(group) / (kSlots / KeyGroups::kGroups) == group);
    std::string key;
    groups.append_redis_key(key, "allowd", group, "n3:api:", "user-1");
    REQUIRE(key.starts_with("allowd:{"));
    CHECK(key.ends_with("}:n3:api:user-1"));
    CHECK(slot_of_tag(key.substr(8, 3)) == groups.slot(group));
  }
}

TEST_CASE("key groups: nodes with even shares of the slots have even shares of the groups") {
  for (std::uint32_t nodes = 1; nodes <= KeyGroups::kGroups; ++nodes) {
    CAPTURE(nodes);
    const auto kept = groups_of(nodes);
    const auto [least, most] = std::minmax_element(kept.begin(), kept.end());
    CHECK(*most - *least <= 1);
  }
}

TEST_CASE("key groups: keys spread evenly over the groups") {
  constexpr int kKeys = 64'000;
  std::vector<int> kept(KeyGroups::kGroups);
  for (int i = 0; i < kKeys; ++i) ++kept[KeyGroups::group_of("n3:api:", "user-" + std::to_string(i))];
  constexpr double kShare = kKeys / KeyGroups::kGroups;
  for (const int keys : kept) CHECK(std::abs(keys - kShare) < 5 * std::sqrt(kShare));
}

TEST_CASE("key groups: twice as many parts of a key as there are nodes leave no node without one") {
  const KeyGroups groups;
  for (std::uint32_t nodes = 2; nodes <= 16; ++nodes) {
    CAPTURE(nodes);
    std::size_t fewest = nodes;
    for (int i = 0; i < 1000; ++i) {
      std::set<std::uint32_t> chosen;
      for (std::size_t rank = 0; rank < std::size_t{2} * nodes; ++rank)
        chosen.insert(groups.slot(KeyGroups::group_of("n3:api:", std::to_string(i), rank)) * nodes / kSlots);
      fewest = std::min(fewest, chosen.size());
    }
    CHECK(fewest == nodes);
  }
}

TEST_CASE("key groups: no two of 34 ranks share a group") {
  for (int i = 0; i < 100; ++i) {
    std::set<std::uint32_t> chosen;
    for (std::size_t rank = 0; rank < 34; ++rank)
      chosen.insert(KeyGroups::group_of("n3:api:", std::to_string(i), rank));
    CHECK(chosen.size() == 34);
  }
}

TEST_CASE("key groups: the vectors in OPERATING.md hold") {
  std::ifstream document(ALLOWD_OPERATING_DOCUMENT);
  REQUIRE(document.good());
  const KeyGroups groups;
  std::size_t rows = 0;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("| slot ")) continue;
    std::vector<std::string> cells;  // what stands between backticks: limit's tag, key, Redis key
    std::istringstream words(line);
    for (std::string word; std::getline(words, word, '`');) cells.push_back(word);
    REQUIRE(cells.size() == 7);
    const std::uint32_t group = KeyGroups::group_of(cells[1], cells[3]);
    std::string key;
    groups.append_redis_key(key, "allowd", group, cells[1], cells[3]);
    CHECK(key == cells[5]);
    CHECK(line.starts_with("| slot " + std::to_string(groups.slot(group)) + " "));
    ++rows;
  }
  CHECK(rows >= 4);
}

}  // namespace
}  // namespace allowd::store
