// SPDX-License-Identifier: MIT
//
// Many questions about many keys as one EVALSHA, and its reply.
//
// The script does what limiter::TokenBucket does, in doubles that never leave the integers. It sends back one
// number per question: what is missing from full afterwards. Everything else a decision says is derived from
// that here, by the limiter, so that there is one place with arithmetic about waits.
//
// A stored value is 27 little-endian bytes: the format number 1 (1 byte), unit, last and used (7 each), and
// the second of the clock in which the bucket will be full (5). A charge that leaves that second as it was
// leaves the TTL too and overwrites the value in place, which costs Redis far less than to set it anew; text
// that Lua has to parse would cost far more (tests/bench/script_formats.py prints both ratios). Formats are
// numbered up to 31, so that printable garbage is never taken for a newer one.
//
// Ownership  A BucketCall owns all that it needs until the reply has come, whatever becomes of the limits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/limiter/token_bucket.h"
#include "agent/store/redis/resp.h"
#include "agent/store/store.h"

namespace allowd::store {

[[nodiscard]] std::string_view bucket_script();

// The Redis key of (limit, key): "<prefix>:{5f1c}:n3:api:user-1". The braces hold four hex digits of a hash
// over the rest, so that a user's bytes never choose the slot. No two pairs share a key.
void append_redis_key(std::string& out, std::string_view prefix, std::string_view limit_tag,
                      std::string_view key);

class BucketCall {
 public:
  // Keeps one script under a millisecond of Redis's time.
  static constexpr std::size_t kMaxQuestions = 128;

  struct Item {
    limiter::Operation operation;
    std::uint16_t limit_index;
    std::int64_t cost;
    std::uint64_t ticket;
    std::uint32_t key_offset;  // into the encoded keys
    std::uint32_t key_size;
    bool was_repeated = false;  // sent a second time because the server had lost the script
  };

  [[nodiscard]] bool is_empty() const { return items_.empty(); }
  [[nodiscard]] bool is_full() const { return items_.size() >= kMaxQuestions; }
  [[nodiscard]] const std::vector<Item>& items() const { return items_; }
  [[nodiscard]] std::string_view redis_key(const Item& item) const {
    return keys_.view().substr(item.key_offset, item.key_size);
  }
  [[nodiscard]] const limiter::TokenBucket& bucket(const Item& item) const {
    return limits_[item.limit_index];
  }

  // Adds a question. Its cost must not be above the burst unless it is a refund or forced.
  void add(limiter::Operation operation, const limiter::TokenBucket& bucket, std::string_view redis_key,
           std::int64_t cost, std::uint64_t ticket, bool was_repeated = false);

  // Appends the command for a server that knows the script by `sha`.
  void write(ByteBuffer& out, std::string_view sha, limiter::TimePoint now) const;

  // The answer to item `index` in a reply that `fits`.
  [[nodiscard]] static bool fits(const redisReply& reply, std::size_t questions);
  [[nodiscard]] Answer answer(const redisReply& reply, std::size_t index) const;
  // Values that were no bucket, or had no TTL, and were put right.
  [[nodiscard]] static std::uint64_t healed(const redisReply& reply);

 private:
  struct Run {  // neighbours that ask the same
    std::uint16_t limit_index;
    limiter::Operation operation;
    std::int64_t units;
    std::uint32_t count;
  };

  [[nodiscard]] std::uint16_t index_of(const limiter::TokenBucket& bucket);
  void note_key(std::string_view redis_key);

  std::vector<Item> items_;
  std::vector<limiter::TokenBucket> limits_;
  std::vector<Run> runs_;
  ByteBuffer keys_;  // as bulk strings
  std::array<std::uint32_t, 4 * kMaxQuestions>
      seen_{};  // hashes of the keys: an open-addressed set, 0 is free
  bool has_repeated_key_ = false;
};

}  // namespace allowd::store
