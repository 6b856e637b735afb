// SPDX-License-Identifier: MIT
//
// Which keys occur most often in a stream, told from a fixed number of counters: the Space-Saving sketch of
// Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
// 2005.
//
// A key that has no counter takes over the smallest one, count included. After `total` occurrences and with m
// counters, whatever the stream:
//   - a key's count is never below the truth, and above it by at most its `error`: count - error <= truth <=
//   count;
//   - no error is above floor(), the smallest count, and that is at most total / m;
//   - every key that occurred more than total / m times has a counter.
//
// Where the paper keeps counters sorted in linked buckets, only the smallest count is known here, and a
// cursor looks for the next counter that still has it. A hit is one increment. Each pass raises the smallest
// count, and m counters of that count took m occurrences each time, so that it comes to at most two counters
// looked at per occurrence; no single one looks at more than 3m.
//
// Keys are told apart by a 64-bit id that the caller makes from all their bytes under a secret; only the
// first kKeptBytes of names are kept, for people to see.
//
// Memory     sizeof: some 88 KiB. Never allocates.
// Threads    One.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace allowd::stats {

// Bytes of any number, of which the first are kept.
class KeptName {
 public:
  static constexpr std::size_t kKeptBytes = 64;

  KeptName() = default;
  explicit KeptName(std::string_view bytes) { keep(bytes); }
  void keep(std::string_view bytes);
  void keep(const KeptName& other) { *this = other; }

  [[nodiscard]] std::string_view kept() const { return {bytes_.data(), size_}; }
  [[nodiscard]] bool is_cut() const { return is_cut_; }

 private:
  std::array<char, kKeptBytes> bytes_{};
  std::uint8_t size_ = 0;
  bool is_cut_ = false;
};

class HeavyHitters {
 public:
  static constexpr std::size_t kCounters = 512;

  struct Entry {
    std::uint64_t id;
    std::uint64_t count;
    std::uint64_t error;  // at most so much of the count belongs to other keys
    const KeptName& limit;
    const KeptName& key;
  };

  HeavyHitters() { clear(); }

  // The names are what KeptName is made of, or such: needed only for a key that has no counter yet.
  template <class LimitName, class KeyName>
  [[gnu::always_inline]] void count(std::uint64_t id, const LimitName& limit, const KeyName& key) {
    ++total_;
    for (std::size_t at = home_of(id);; at = after(at)) {
      const std::uint16_t place = index_[at];
      if (place == kNone) return begin_to_count(id, limit, key);
      if (counters_[place].id == id) {
        ++counters_[place].count;
        return;
      }
    }
  }
  void clear();

  // Occurrences counted in all; the sum of the counts.
  [[nodiscard]] std::uint64_t total() const { return total_; }
  // How often a key without a counter may have occurred.
  [[nodiscard]] std::uint64_t floor() const;
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] Entry entry(std::size_t place) const;
  // The place of a key that has a counter.
  [[nodiscard]] std::optional<std::size_t> find(std::uint64_t id) const;

 private:
  static constexpr unsigned kIndexBits = 11;  // four slots a counter: probes are short
  static constexpr std::size_t kSlots = std::size_t{1} << kIndexBits;
  static constexpr std::uint16_t kNone = 0xffff;

  // What a hit touches, apart from the rest: it stays in the cache.
  struct Counter {
    std::uint64_t id;
    std::uint64_t count;
  };
  struct Details {
    std::uint64_t error = 0;
    KeptName limit;
    KeptName key;
  };

  [[nodiscard]] static std::size_t home_of(std::uint64_t id) { return id >> (64 - kIndexBits); }
  [[nodiscard]] static std::size_t after(std::size_t slot) { return (slot + 1) & (kSlots - 1); }
  [[nodiscard]] std::uint64_t smallest_count() const;
  [[nodiscard]] std::size_t take_counter(std::uint64_t id);
  [[nodiscard]] std::size_t find_smallest();
  void take_out_of_index(std::size_t place);
  template <class LimitName, class KeyName>
  [[gnu::noinline]] void begin_to_count(std::uint64_t id, const LimitName& limit, const KeyName& key) {
    Details& details = details_[take_counter(id)];
    details.limit.keep(limit);
    details.key.keep(key);
  }

  std::array<std::uint16_t, kSlots> index_;  // open addressing, linear probing
  std::array<Counter, kCounters> counters_;
  std::array<Details, kCounters> details_;
  std::size_t size_ = 0;
  std::uint64_t total_ = 0;
  // Once all counters are in use: none counts less than `smallest_`, and those before the cursor count more.
  std::uint64_t smallest_ = 0;
  std::size_t cursor_ = 0;
};

}  // namespace allowd::stats
