// SPDX-License-Identifier: MIT
//
// The seam between what this host knows and a store that many hosts share.
//
// Everybody who asks about one key is put into as few questions as possible: equal ones in a row are one,
// decided as if they were asked one by one. Each answer brings what the store knew of the key, so that the
// asker can decide the rest of the row, and the near future, alone.
//
// Threads    One; the loop's.
// Ownership  A SharedQuestion borrows everything; a store copies what it needs past `ask`.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent/store/store.h"

namespace allowd::store {

// What time it is on a shard, and how far that may be off.
struct ShardTime {
  limiter::TimePoint now{};
  limiter::Micros uncertainty{0};
  std::uint32_t epoch = 0;  // another number whenever times of before mean nothing any more
  // False while the shard is known not to answer: nothing new waits for what was asked of it. What it said
  // before still holds.
  bool is_answering = true;
};

struct SharedQuestion {
  limiter::Operation operation = limiter::Operation::take;
  const limiter::Definition* definition = nullptr;
  std::string_view limit_tag;
  std::string_view key;
  std::int64_t cost = 1;
  std::uint32_t times = 1;   // so many takes or peeks in a row; above 1 for buckets and tiers alone
  std::uint64_t ticket = 0;  // the asker's own, handed back with the answer
  std::uint32_t shard = 0;   // shard_of(limit_tag, key)
};

// The answer to the first of a row, and from what it follows.
struct SharedAnswer : Answer {
  limiter::TimePoint at{};  // shard time at which it was decided
  // Buckets and tiers: as they stood before, in the tiers' order. Refunds of buckets: after.
  std::array<limiter::TierState, limiter::Definition::kMaxTiers> states{};
  bool has_charged = false;  // what was asked together: the store has charged it
};

class SharedSink {
 public:
  // Returns how many permits were granted to nobody and are to be given back.
  virtual std::int64_t on_answer(std::uint64_t ticket, const SharedAnswer& answer, SteadyTime now) = 0;
  // False once nobody waits for it any more.
  [[nodiscard]] virtual bool is_waiting(std::uint64_t ticket) const = 0;

 protected:
  ~SharedSink() = default;
};

class SharedStore : public stats::MetricSource {
 public:
  virtual void attach(SharedSink& sink) = 0;

  // Which of its servers keeps the key: always the same one. Of a rank above 0 another one, as long as there
  // are more.
  [[nodiscard]] virtual std::uint32_t shard_of(std::string_view limit_tag, std::string_view key,
                                               std::size_t rank = 0) const = 0;
  [[nodiscard]] virtual std::uint32_t shards() const = 0;
  // None while it cannot be asked.
  [[nodiscard]] virtual std::optional<ShardTime> time_of(std::uint32_t shard, SteadyTime now) const = 0;

  // True: promises one call of on_answer for this ticket. Questions about one key are decided in their order.
  [[nodiscard]] virtual bool ask(const SharedQuestion& question) = 0;
  // As Store::ask_together.
  [[nodiscard]] virtual bool ask_together(std::span<const SharedQuestion> questions) = 0;
  virtual void reset(std::uint32_t shard, std::string_view limit_tag, std::string_view key,
                     std::function<void(bool)> done) = 0;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual bool is_available() const = 0;
  [[nodiscard]] virtual std::string describe_shards() const = 0;
  // As Store::next_probe_in.
  [[nodiscard]] virtual limiter::Micros next_probe_in(std::uint32_t shard, SteadyTime now) const = 0;
  // As Store::note_expired.
  virtual void note_expired(std::uint32_t /*shard*/, limiter::Micros /*waited*/, SteadyTime /*now*/) {}
  // As Store::agents, which is kept while the shard does not answer.
  [[nodiscard]] virtual std::optional<std::uint32_t> agents(std::uint32_t /*shard*/) const {
    return std::nullopt;
  }
};

}  // namespace allowd::store
