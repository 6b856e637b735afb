// SPDX-License-Identifier: MIT
//
// Questions about limits of several tiers, or of one window: all or none, in one key.
//
// The script sends the tiers' numbers as they stood before; limiter::Definition does to them here what the
// script did there.
#pragma once

#include "agent/store/redis/codec/script_call.h"

namespace allowd::store {

class TierCall final : public ScriptCall {
 public:
  [[nodiscard]] std::vector<SharedAnswer> answers(const redisReply& reply) const override;

 private:
  [[nodiscard]] std::size_t weight_of(const limiter::Definition& definition,
                                      std::uint32_t times) const override {
    return (1 + definition.tiers().size()) * (1 + times) / 2;
  }
  void on_added(const Item& item) override { reply_size_ += 1 + 3 * definition(item).tiers().size(); }
  [[nodiscard]] std::size_t argument_count() const override;
  void write_arguments(ByteBuffer& out) const override;
  [[nodiscard]] char kind() const override { return 't'; }
  [[nodiscard]] std::size_t reply_size() const override { return reply_size_; }

  std::size_t reply_size_ = 0;
};

}  // namespace allowd::store
