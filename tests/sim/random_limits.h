// SPDX-License-Identifier: MIT
//
// Random numbers and random limits of every kind.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/limiter/definition.h"

namespace allowd::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}

  std::int64_t between(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  bool one_in(std::int64_t count) { return between(1, count) == 1; }
  // Small numbers as often as large ones.
  std::int64_t of_any_size(std::int64_t most) {
    if (most <= 1) return 1;
    const auto bits = between(0, static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(most))));
    return between(1, std::min(most, std::int64_t{1} << bits));
  }
  template <class T>
  T choose(std::initializer_list<T> choices) {
    return *(choices.begin() + between(0, std::ssize(choices) - 1));
  }

 private:
  std::mt19937_64 random_;
};

// 1/min to 10^6/s; buckets, windows, logs, counters, tiers of these that stand side by side, some that only
// watch.
class RandomLimits {
 public:
  explicit RandomLimits(Random& random) : random_(random) {}

  limiter::DefinitionPtr any() {
    while (true) {
      auto tiers = any_tiers();
      auto made = limiter::Definition::make(std::move(tiers), random_.one_in(12));
      if (made) return *made;
    }
  }
  // The same limit with other numbers, which may share its state.
  limiter::DefinitionPtr changed(const limiter::Definition& definition) {
    while (true) {
      std::vector<limiter::Tier> tiers = definition.tiers();
      for (limiter::Tier& tier : tiers) {
        const limiter::Rate rate = tier.rate();
        if (auto made = make(tier.algorithm.index(), {other(rate.count), rate.period}, other(tier.capacity()),
                             align_of(tier)))
          tier.algorithm = *made;
      }
      auto made = limiter::Definition::make(std::move(tiers), definition.is_shadow());
      if (made) return *made;
    }
  }

 private:
  using Align = limiter::FixedWindow::Align;

  static Align align_of(const limiter::Tier& tier) {
    const auto* window = std::get_if<limiter::FixedWindow>(&tier.algorithm);
    return window != nullptr ? window->align() : Align::first;
  }
  std::int64_t other(std::int64_t number) {
    return std::max<std::int64_t>(
        1, random_.one_in(2) ? number / random_.between(1, 20) : number * random_.between(1, 20));
  }
  static std::optional<limiter::Algorithm> make(std::size_t index, limiter::Rate rate, std::int64_t burst,
                                                Align align) {
    const auto given = [](auto made) {
      return made ? std::optional<limiter::Algorithm>(*made) : std::nullopt;
    };
    switch (index) {
      case 0: return given(limiter::TokenBucket::make(rate, burst));
      case 1: return given(limiter::FixedWindow::make(rate, align));
      case 2: return given(limiter::SlidingWindow::make(rate));
      case 3: return given(limiter::SlidingLog::make(rate));
      default: return given(limiter::Counter::make(rate));
    }
  }
  limiter::Algorithm any_algorithm(std::size_t most_index) {
    using namespace std::chrono_literals;
    while (true) {
      auto index = static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(most_index) + 2));
      if (index > most_index) index = 0;  // buckets more often than others
      const limiter::Micros period =
          random_.choose<limiter::Micros>({1ms, 7ms, 100ms, 1s, 1s, 1s, 10s, 1min, 1h, 24h});
      const std::int64_t most = std::max<std::int64_t>(1, period.count());
      const std::int64_t count = random_.one_in(3) ? random_.of_any_size(most)
                                                   : random_.between(1, std::min<std::int64_t>(most, 30));
      // Some so large that they are counted in ticks.
      const std::int64_t burst = random_.one_in(15)  ? random_.of_any_size(std::int64_t{1} << 40)
                                 : random_.one_in(2) ? random_.between(1, 20)
                                                     : count;
      const auto made = make(index, {count, period}, burst, random_.choose({Align::first, Align::clock}));
      if (made) return *made;
    }
  }
  std::vector<limiter::Tier> any_tiers() {
    if (!random_.one_in(3)) return {{"", any_algorithm(4), false}};
    std::vector<limiter::Tier> tiers;
    for (std::int64_t i = random_.between(1, 4); i > 0; --i)
      tiers.push_back({"t" + std::to_string(i), any_algorithm(2), random_.one_in(5)});
    return tiers;
  }

  Random& random_;
};

}  // namespace allowd::sim
