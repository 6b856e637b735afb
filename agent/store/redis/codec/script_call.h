// SPDX-License-Identifier: MIT
//
// Many questions about many keys of limits of one shape as one call of the decision script, and its reply.
//
// Everything that a decision says is derived from what the script sends back by limiter/, so that there is
// one place with arithmetic about waits.
//
// Ownership  A call owns all that it needs until the reply has come, whatever becomes of the limits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/limiter/definition.h"
#include "agent/store/redis/codec/resp.h"
#include "agent/store/shared_store.h"

namespace allowd::store {

// The Redis key of (limit, key): "<prefix>:{5f1c}:n3:api:user-1". The braces hold four hex digits of a hash
// over the rest, so that a user's bytes never choose the slot. No two pairs share a key. (In a Cluster keys
// are laid out otherwise: topology/key_groups.h.)
void append_redis_key(std::string& out, std::string_view prefix, std::string_view limit_tag,
                      std::string_view key);

class ScriptCall {
 public:
  // Keeps one script under about a millisecond of Redis's time. A question weighs 1 and more.
  static constexpr std::size_t kMaxWeight = 128;

  struct Item {
    limiter::Operation operation;
    std::uint16_t definition_index;
    std::int64_t cost;
    std::uint64_t ticket;
    std::uint32_t key_offset;  // into the encoded keys
    std::uint32_t key_size;
    std::uint32_t times;            // asked so often in a row
    bool was_repeated = false;      // sent a second time because the server had lost the script
    std::uint8_t redirections = 0;  // so many servers have said that another one is to be asked
  };

  // A call for limits of that shape.
  [[nodiscard]] static std::unique_ptr<ScriptCall> make(limiter::Definition::Shape shape);
  virtual ~ScriptCall() = default;
  ScriptCall(const ScriptCall&) = delete;
  ScriptCall& operator=(const ScriptCall&) = delete;

  // Adds a question. What asks to pass must not cost more than its limit can hold.
  // Takes and peeks of buckets and tiers may be asked `times` in a row.
  void add(limiter::Operation operation, const limiter::Definition& definition, std::string_view redis_key,
           std::int64_t cost, std::uint64_t ticket, std::uint32_t times = 1);
  // Adds what is, or was, an item of another call.
  void add_again(const ScriptCall& other, const Item& item);

  // Whether all items pass or none is charged.
  [[nodiscard]] virtual bool is_together() const { return false; }
  [[nodiscard]] bool is_full() const { return weight_ >= kMaxWeight; }
  [[nodiscard]] const std::vector<Item>& items() const { return items_; }
  [[nodiscard]] std::string_view redis_key(const Item& item) const {
    return keys_.view().substr(item.key_offset, item.key_size);
  }
  [[nodiscard]] const limiter::Definition& definition(const Item& item) const {
    return *definitions_[item.definition_index];
  }

  // That of the first tier of the first item, for people.
  [[nodiscard]] const limiter::Algorithm& algorithm() const {
    return definitions_.front()->tiers().front().algorithm;
  }

  // In place of the time: the server's own at the moment at which it decides.
  static constexpr std::string_view kServerTime = "?";

  // Appends the command for a server that knows the script by `sha`.
  void write(ByteBuffer& out, std::string_view sha, limiter::TimePoint now, bool by_server_time = false);

  // Whether `reply` is one of this call's.
  [[nodiscard]] bool fits(const redisReply& reply) const;
  // Where the server told its time: takes it, from a reply that fits, for the time at which the call was
  // decided.
  void take_time(const redisReply& reply);
  // The answers to all items, in order, of a reply that fits.
  [[nodiscard]] virtual std::vector<SharedAnswer> answers(const redisReply& reply) const = 0;
  // Values that were not what they should be, or had no TTL, and were put right.
  [[nodiscard]] static std::uint64_t healed(const redisReply& reply);

 protected:
  // In the reply: this key's value has a format number that the script does not know.
  static constexpr std::int64_t kUnknownFormat = -(std::int64_t{1} << 53);

  ScriptCall() = default;

  [[nodiscard]] const std::vector<limiter::DefinitionPtr>& definitions() const { return definitions_; }
  [[nodiscard]] const ByteBuffer& keys() const { return keys_; }
  [[nodiscard]] limiter::TimePoint asked_at() const { return asked_at_; }
  void set_asked_at(limiter::TimePoint now) { asked_at_ = now; }

  [[nodiscard]] virtual std::size_t weight_of(const limiter::Definition&, std::uint32_t /*times*/) const {
    return 1;
  }
  // An answer that says nothing, until more is known.
  [[nodiscard]] SharedAnswer no_answer() const {
    SharedAnswer answer;
    answer.at = asked_at_;
    return answer;
  }
  // Called after an item was added.
  virtual void on_added(const Item&) {}
  // The arguments behind the kind and the time: how many, and themselves.
  [[nodiscard]] virtual std::size_t argument_count() const = 0;
  virtual void write_arguments(ByteBuffer& out) const = 0;
  [[nodiscard]] virtual char kind() const = 0;
  // Integers in the reply, without the last.
  [[nodiscard]] virtual std::size_t reply_size() const = 0;

 private:
  [[nodiscard]] std::uint16_t index_of(const limiter::Definition& definition);
  // Of `item` all but what says where in this call its definition and key are.
  void append(const limiter::Definition& definition, std::string_view redis_key, Item item);

  std::vector<Item> items_;
  std::vector<limiter::DefinitionPtr> definitions_;
  ByteBuffer keys_;  // as bulk strings
  std::size_t weight_ = 0;
  limiter::TimePoint asked_at_{};
  bool by_server_time_ = false;
};

[[nodiscard]] std::string_view letter_of(limiter::Operation operation);

}  // namespace allowd::store
