// SPDX-License-Identifier: MIT
//
// What every store has to answer, whatever it keeps its keys in. A suite hands in `decide`, which settles one
// question at a given shard time on a store that starts empty.
#pragma once

#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "agent/store/store.h"
#include "tests/support/printing.h"

namespace allowd::testing {

using Decide = std::function<store::Answer(const store::Question& question, limiter::TimePoint now)>;

[[nodiscard]] inline limiter::DefinitionPtr make_bucket(std::int64_t count, limiter::Micros period,
                                                        std::int64_t burst) {
  auto bucket = limiter::TokenBucket::make({count, period}, burst);
  REQUIRE(bucket);
  auto definition = limiter::Definition::make({{"", *bucket, false}}, false);
  REQUIRE(definition);
  return *definition;
}

[[nodiscard]] inline limiter::TimePoint shard_time(limiter::Micros since_epoch) {
  return limiter::TimePoint{since_epoch};
}

// Keys and limits do not share, however alike they look.
inline void check_keys_are_apart(const Decide& decide) {
  using limiter::Operation;
  const auto bucket = make_bucket(1, std::chrono::hours(1), 1);
  const std::vector<std::string> tags = {
      store::make_limit_tag('n', "a", ""), store::make_limit_tag('n', "a:b", ""),
      store::make_limit_tag('n', "", ""), store::make_limit_tag('i', "a", ""),
      store::make_limit_tag('n', "1:a", "")};
  const std::vector<std::string> keys = {"",
                                         "a",
                                         "b",
                                         ":b",
                                         "b:c",
                                         "1:a:b",
                                         std::string(1, '\0'),
                                         "{",
                                         "{a}",
                                         std::string("a\0", 2),
                                         std::string(1024, 'k'),
                                         std::string(1023, 'k')};
  for (const std::string& tag : tags) {
    for (const std::string& key : keys) {
      CAPTURE(tag);
      CAPTURE(key);
      const store::Question question{Operation::take, bucket.get(), tag, key, 1, 0};
      CHECK(decide(question, shard_time(std::chrono::seconds(1))).decision.verdict == limiter::Verdict::ok);
    }
  }
  for (const std::string& tag : tags) {
    for (const std::string& key : keys) {
      const store::Question question{Operation::take, bucket.get(), tag, key, 1, 0};
      CHECK(decide(question, shard_time(std::chrono::seconds(2))).decision.verdict ==
            limiter::Verdict::limited);
    }
  }
}

// Random questions about a few keys are answered as the limiter alone would.
inline void check_decides_as_the_limiter(const Decide& decide, std::uint64_t seed, int steps) {
  using limiter::Operation;
  const std::vector<limiter::DefinitionPtr> buckets = {make_bucket(10, std::chrono::seconds(1), 10),
                                                       make_bucket(3, std::chrono::seconds(1), 7),
                                                       make_bucket(1000, std::chrono::hours(24), 50)};
  const std::vector<std::string> keys = {"", "a", "b"};
  const std::string tag = store::make_limit_tag('n', "contract", "");
  std::vector<limiter::BucketState> states(keys.size());
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t bound) { return static_cast<std::int64_t>(random() % bound); };
  limiter::TimePoint now = shard_time(std::chrono::hours(1));
  for (int step = 0; step < steps; ++step) {
    const auto& bucket = buckets[static_cast<std::size_t>(below(buckets.size()))];
    const auto key = static_cast<std::size_t>(below(keys.size()));
    const auto operation = below(4) == 0 ? static_cast<Operation>(below(4)) : Operation::take;
    const store::Question question{operation, bucket.get(), tag, keys[key], below(12), 0};
    const store::Answer answer = decide(question, now);
    REQUIRE(answer.status == store::Answer::Status::decided);
    REQUIRE_FALSE(answer.by_overflow);
    const limiter::Decision expected = bucket->bucket().apply(states[key], operation, question.cost, now);
    if (answer.decision != expected) FAIL("step " << step << " differs");
    now += limiter::Micros{below(3) == 0 ? -below(100'000) : below(500'000)};
  }
}

}  // namespace allowd::testing
