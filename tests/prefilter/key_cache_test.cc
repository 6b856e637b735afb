// SPDX-License-Identifier: MIT
#include "agent/prefilter/key_cache.h"

#include <doctest/doctest.h>

#include <chrono>

namespace allowd::prefilter {
namespace {

using namespace std::chrono_literals;

// Which set, and which key of it.
constexpr store::KeyHash hash_of(std::uint64_t set, std::uint64_t number) { return {set, number}; }

KnownKey* insert(KeyCache& keys, const store::KeyHash& hash, limiter::Micros spoken_of) {
  KnownKey* key = keys.insert(hash);
  REQUIRE(key != nullptr);
  key->level.at = limiter::TimePoint{spoken_of};
  return key;
}

TEST_CASE("key cache: a key is found as it was left, and only it") {
  KeyCache keys(16);
  CHECK(keys.find(hash_of(1, 7)) == nullptr);
  insert(keys, hash_of(1, 7), 5s)->shard = 3;
  REQUIRE(keys.find(hash_of(1, 7)) != nullptr);
  CHECK(keys.find(hash_of(1, 7))->shard == 3);
  CHECK(keys.find(hash_of(1, 8)) == nullptr);
  CHECK(keys.find(hash_of(2, 7)) == nullptr);
  CHECK(keys.size() == 1);
}

TEST_CASE("key cache: it has room for as many as were asked for, rounded up to a power of two") {
  CHECK(KeyCache(0).capacity() == 4);
  CHECK(KeyCache(4).capacity() == 4);
  CHECK(KeyCache(5).capacity() == 8);
  CHECK(KeyCache(262'144).capacity() == 262'144);
}

TEST_CASE("key cache: a full set forgets the key of which the store has not spoken for longest") {
  KeyCache keys(4);
  insert(keys, hash_of(0, 1), 40s);
  insert(keys, hash_of(0, 2), 10s);
  insert(keys, hash_of(0, 3), 30s);
  insert(keys, hash_of(0, 4), 20s);
  CHECK(keys.dropped() == 0);
  KnownKey* fifth = keys.insert(hash_of(0, 5));
  REQUIRE(fifth != nullptr);
  CHECK(keys.find(hash_of(0, 2)) == nullptr);
  for (const std::uint64_t kept : {1, 3, 4, 5}) CHECK(keys.find(hash_of(0, kept)) != nullptr);
  CHECK(keys.size() == 4);
  CHECK(keys.dropped() == 1);
}

TEST_CASE("key cache: who takes another's place inherits nothing") {
  KeyCache keys(4);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    KnownKey* key = insert(keys, hash_of(0, i), 10s);
    key->level.kind = Level::Kind::tier;
    key->definition = key->epoch = key->held_us = key->held_cost = 9;
    key->vain_questions = 9;
  }
  const KnownKey* fresh = keys.insert(hash_of(0, 5));
  REQUIRE(fresh != nullptr);
  CHECK(fresh->level.kind == Level::Kind::unknown);
  CHECK(fresh->definition == 0);
  CHECK(fresh->epoch == 0);
  CHECK(fresh->held_us == 0);
  CHECK(fresh->held_cost == 0);
  CHECK(fresh->vain_questions == 0);
  CHECK(fresh->queue == KnownKey::kNoQueue);
}

TEST_CASE("key cache: keys with queues stay, and a set full of them takes no other") {
  KeyCache keys(8);
  for (std::uint64_t i = 1; i <= 4; ++i) insert(keys, hash_of(0, i), 10s)->queue = 1;
  CHECK(keys.insert(hash_of(0, 5)) == nullptr);
  CHECK(keys.insert(hash_of(1, 5)) != nullptr);  // in another set there is room
  keys.find(hash_of(0, 3))->queue = KnownKey::kNoQueue;
  CHECK(keys.insert(hash_of(0, 5)) != nullptr);
  CHECK(keys.find(hash_of(0, 3)) == nullptr);
}

TEST_CASE("key cache: a hash whose half is zero is a key like others") {
  KeyCache keys(4);
  CHECK(keys.find(hash_of(0, 0)) == nullptr);
  insert(keys, hash_of(0, 0), 1s);
  CHECK(keys.find(hash_of(0, 0)) != nullptr);
  CHECK(keys.size() == 1);
}

}  // namespace
}  // namespace allowd::prefilter
