// SPDX-License-Identifier: MIT
//
// Questions about limits that are a sliding log.
#pragma once

#include "agent/store/redis/codec/script_call.h"

namespace allowd::store {

class LogCall final : public ScriptCall {
 public:
  [[nodiscard]] std::vector<SharedAnswer> answers(const redisReply& reply) const override;

 private:
  static constexpr std::size_t kNumbersPerItem = 5;
  static constexpr std::size_t kArgumentsPerItem = 4;

  // Redis unpacks every stamp of a log.
  [[nodiscard]] std::size_t weight_of(const limiter::Definition& definition, std::uint32_t) const override {
    return 2 + static_cast<std::size_t>(definition.log().rate().count) / 16;
  }
  [[nodiscard]] std::size_t argument_count() const override { return kArgumentsPerItem * items().size(); }
  void write_arguments(ByteBuffer& out) const override;
  [[nodiscard]] char kind() const override { return 'l'; }
  [[nodiscard]] std::size_t reply_size() const override { return kNumbersPerItem * items().size(); }
};

}  // namespace allowd::store
