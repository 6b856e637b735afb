// SPDX-License-Identifier: MIT
//
// Which keys are hot now: asked about most, and refused most.
//
// What is hot now is what was counted in this minute and the one before: each minute has sketches of its own
// (see HeavyHitters), the minute before the last is forgotten, and a report adds two up. Its figures are
// therefore plain numbers of queries over a span that the report states, 60 to 120 s once the agent has run
// for that long, and the sketch's bounds hold for their sums: count - error <= truth <= count, error <= total
// / 512.
//
// Keys are told apart by the caller's hash of limit and key: it should depend on a secret, so that outsiders
// cannot aim at collisions of its 64 bits.
//
// Memory     Four sketches, some 350 KiB, allocated once.
// Time       An argument. One that steps back counts for the minute that was reached.
// Threads    One.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/stats/heavy_hitters.h"

namespace allowd::stats {

class HotKeys {
 public:
  using Time = std::chrono::time_point<std::chrono::steady_clock, std::chrono::microseconds>;

  static constexpr std::chrono::seconds kWindow{60};

  // A key of a limit. All is borrowed.
  struct Subject {
    std::uint64_t id;  // of this limit and key
    const KeptName& limit;
    std::string_view key;
  };
  // A key that was asked about and is not decided yet.
  struct Asked {
    std::uint64_t id = 0;
    KeptName key;
  };

  enum class By : std::uint8_t { queries, refusals };
  struct Row {
    std::uint64_t count = 0;
    std::uint64_t error = 0;  // at most so much of the count belongs to other keys
    KeptName limit;
    KeptName key;
  };
  struct Report {
    std::chrono::microseconds span{0};  // how long was counted
    std::uint64_t total = 0;            // all of those queries or refusals
    std::uint64_t bound = 0;            // no error is above it, nor the truth of a key that is not tracked
    std::vector<Row> rows;              // the largest counts first
  };

  HotKeys();

  // A query that was decided at once.
  [[gnu::always_inline]] void count(const Subject& subject, bool is_refused, Time now) {
    Window& window = window_at(now);
    window.queries.count(subject.id, subject.limit, subject.key);
    if (is_refused) window.refusals.count(subject.id, subject.limit, subject.key);
  }
  // A query whose decision comes later, and then its refusal, if it is one.
  [[nodiscard]] Asked count_query(const Subject& subject, Time now);
  void count_refusal(const KeptName& limit, const Asked& asked, Time now);

  // At most `rows` of the hottest keys.
  [[nodiscard]] Report report(By by, std::size_t rows, Time now) const;

 private:
  struct Window {
    HeavyHitters queries;
    HeavyHitters refusals;
    void clear();
  };

  [[nodiscard]] Window& window_at(Time now) {
    if (now >= window_end_) turn_over(now);
    return *current_;
  }
  void turn_over(Time now);

  std::unique_ptr<Window> current_;
  std::unique_ptr<Window> previous_;
  std::optional<Time> first_;      // when counting began
  Time window_end_ = Time::min();  // of the current window
};

}  // namespace allowd::stats
