// SPDX-License-Identifier: MIT
//
// Questions about limits of a single token bucket: the shape that most limits have, and the cheapest.
//
// A stored value is 27 little-endian bytes: the format number 1 (1 byte), unit, last and used (7 each), and
// the second of the clock in which the bucket will be full (5). A charge that leaves that second as it was
// leaves the TTL too and overwrites the value in place, which costs Redis far less than to set it anew; text
// that Lua has to parse would cost far more (tests/bench/script_formats.py prints both ratios).
#pragma once

#include "agent/store/redis/codec/script_call.h"

namespace allowd::store {

class BucketCall final : public ScriptCall {
 public:
  // All items, of different keys, pass or none is charged.
  void decide_together() { is_together_ = true; }
  [[nodiscard]] bool is_together() const override { return is_together_; }
  [[nodiscard]] std::vector<SharedAnswer> answers(const redisReply& reply) const override;
  // A call that reads the key and has no question about it.
  static void write_empty(ByteBuffer& out, std::string_view sha, std::string_view redis_key);

 private:
  struct Run {  // neighbours that ask the same
    std::uint16_t definition_index;
    limiter::Operation operation;
    std::int64_t units;
    std::uint32_t times;
    std::uint32_t count;
  };

  void on_added(const Item& item) override;
  [[nodiscard]] std::size_t argument_count() const override {
    return 2 + 4 * definitions().size() + 5 * runs_.size();
  }
  void write_arguments(ByteBuffer& out) const override;
  [[nodiscard]] char kind() const override { return 'b'; }
  [[nodiscard]] std::size_t reply_size() const override { return items().size() + ticked_; }
  [[nodiscard]] const limiter::TokenBucket& bucket(const Item& item) const {
    return definition(item).bucket();
  }
  void note_key(std::string_view redis_key);

  std::vector<Run> runs_;
  std::size_t ticked_ = 0;  // items under a limit whose tick is above 1 µs
  // Hashes of the keys: an open-addressed set, 0 is free.
  std::array<std::uint32_t, 4 * kMaxWeight> seen_{};
  bool has_repeated_key_ = false;
  bool is_together_ = false;
};

}  // namespace allowd::store
