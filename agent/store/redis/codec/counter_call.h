// SPDX-License-Identifier: MIT
//
// Questions about limits that are a shared counter.
//
// Servers that know PEXPIRE NX (Redis 7) are asked without the script, by `write_transaction`: INCRBY and
// PEXPIRE in one MULTI/EXEC, the cheapest that there is. What the transaction finds that is no count, the
// script puts right.
#pragma once

#include "agent/store/redis/codec/script_call.h"

namespace allowd::store {

class CounterCall final : public ScriptCall {
 public:
  [[nodiscard]] std::vector<SharedAnswer> answers(const redisReply& reply) const override;

  // Whether a question was asked before: it then goes to the script.
  [[nodiscard]] bool has_repeated() const;

  // Appends the same questions as a transaction, sent at `now`, and says how many replies come before EXEC's.
  [[nodiscard]] std::size_t write_transaction(ByteBuffer& out, limiter::TimePoint now);
  // The answers of EXEC's reply; a `promised` one: the value is no count, ask the script. Empty: not a reply
  // to this.
  [[nodiscard]] std::vector<SharedAnswer> transaction_answers(const redisReply& reply) const;

 private:
  static constexpr std::size_t kArgumentsPerItem = 3;

  [[nodiscard]] std::size_t argument_count() const override { return kArgumentsPerItem * items().size(); }
  void write_arguments(ByteBuffer& out) const override;
  [[nodiscard]] char kind() const override { return 'c'; }
  [[nodiscard]] std::size_t reply_size() const override { return 2 * items().size(); }
  [[nodiscard]] SharedAnswer answer(const Item& item, std::int64_t count, std::int64_t left_ms) const;
};

}  // namespace allowd::store
