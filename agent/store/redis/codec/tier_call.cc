// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/tier_call.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace allowd::store {
namespace {

constexpr std::size_t kArgumentsPerTier = 7;

// Eight bytes that stand for a tier's identity in stored values.
std::array<char, 8> digest_of(const limiter::Tier& tier) {
  const std::string identity = tier.identity();
  std::uint64_t digest = XXH64(identity.data(), identity.size(), 0);
  std::array<char, 8> bytes;
  for (char& byte : bytes) {
    byte = static_cast<char>(digest & 0xff);
    digest >>= 8;
  }
  return bytes;
}

void write_tier(ByteBuffer& out, const limiter::Tier& tier) {
  const auto digest = digest_of(tier);
  write_bulk(out, std::string_view(digest.data(), digest.size()));
  const auto write_numbers = [&](std::string_view letter, std::int64_t x, std::int64_t y, std::int64_t z,
                                 limiter::Micros tick) {
    write_bulk(out, letter);
    for (const std::int64_t number : {x, y, z, std::int64_t{tick.count()}}) write_bulk(out, number);
  };
  const limiter::Micros window = tier.window();
  if (const auto* bucket = std::get_if<limiter::TokenBucket>(&tier.algorithm)) {
    write_numbers("b", bucket->unit(), bucket->refill(), bucket->full(), bucket->tick());
  } else if (const auto* fixed = std::get_if<limiter::FixedWindow>(&tier.algorithm)) {
    const bool is_aligned = fixed->align() == limiter::FixedWindow::Align::clock;
    write_numbers(is_aligned ? "a" : "f", tier.capacity(), window.count(), 0, limiter::Micros{1});
  } else {
    const auto& sliding = std::get<limiter::SlidingWindow>(tier.algorithm);
    write_numbers("s", tier.capacity(), window.count(), 0, sliding.tick());
  }
  write_bulk(out, std::int64_t{tier.shadow ? 1 : 0});
}

}  // namespace

std::size_t TierCall::argument_count() const {
  std::size_t count = 1 + 4 * items().size();
  for (const limiter::DefinitionPtr& definition : definitions())
    count += 1 + kArgumentsPerTier * definition->tiers().size();
  return count;
}

void TierCall::write_arguments(ByteBuffer& out) const {
  write_bulk(out, static_cast<std::int64_t>(definitions().size()));
  for (const limiter::DefinitionPtr& definition : definitions()) {
    write_bulk(out, static_cast<std::int64_t>(definition->tiers().size()));
    for (const limiter::Tier& tier : definition->tiers()) write_tier(out, tier);
  }
  for (const Item& item : items()) {
    write_bulk(out, std::int64_t{item.definition_index} + 1);
    write_bulk(out, letter_of(item.operation));
    write_bulk(out, std::min(item.cost, limiter::kMaxUsed));
    write_bulk(out, std::int64_t{item.times});
  }
}

std::vector<SharedAnswer> TierCall::answers(const redisReply& reply) const {
  std::vector<SharedAnswer> all;
  all.reserve(items().size());
  std::size_t at = 0;
  const auto next = [&] { return std::int64_t{reply.element[at++]->integer}; };
  for (const Item& item : items()) {
    const limiter::Definition& rules = definition(item);
    const std::int64_t passed = next();
    std::array<limiter::TierState, limiter::Definition::kMaxTiers> states{};
    bool is_sane = passed == 0 || passed == 1;
    for (std::size_t i = 0; i < rules.tiers().size(); ++i) {
      const std::int64_t scale = next(), used = next(), time = next();
      const bool is_counted =
          scale >= 0 && scale <= limiter::kMaxUsed && used >= 0 && used <= limiter::kMaxUsed;
      is_sane = is_sane && is_counted && time >= 0 && time <= 2 * limiter::kMaxUsed;
      states[i] = {scale, used, limiter::TimePoint{limiter::Micros{time}}};
    }
    all.push_back(no_answer());
    if (!is_sane) continue;  // of a newer version, or not our script
    all.back().states = states;
    const auto decision =
        rules.apply(std::span(states).first(rules.tiers().size()), item.operation, item.cost, asked_at());
    const bool is_refused =
        decision.retry_after.count() != 0 &&
        !(decision.verdict == limiter::Verdict::shadow && rules.tiers()[decision.tier].shadow);
    if (is_refused == (passed == 1)) continue;  // the script decided otherwise: not ours
    all.back().status = Answer::Status::decided;
    all.back().decision = decision;
  }
  return all;
}

}  // namespace allowd::store
