// SPDX-License-Identifier: MIT
//
// A whole limit: one or more tiers, of which a cost takes from all or from none.
//
// Shape       How its state is kept: a single bucket, tiers side by side, a log, a counter. State of one
//             shape is never read as another's.
// Shadow      What would be refused by a shadow tier is not charged there and does not stop the others. A
//             shadow definition decides as without it; only the verdict of a refusal changes.
// Ownership   Immutable. Who needs one past a call takes shared_from_this().
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "agent/limiter/counter.h"
#include "agent/limiter/decision.h"
#include "agent/limiter/sliding_log.h"
#include "agent/limiter/token_bucket.h"
#include "agent/limiter/windows.h"
#include "agent/result/result.h"

namespace allowd::limiter {

using Algorithm = std::variant<TokenBucket, FixedWindow, SlidingWindow, SlidingLog, Counter>;
[[nodiscard]] std::string_view name_of(const Algorithm& algorithm);

// What one key has used of one tier: a BucketState or a WindowState, by the tier's algorithm. All zero:
// nothing is known.
struct TierState {
  std::int64_t scale = 0;  // BucketState::unit or WindowState::before
  std::int64_t used = 0;   // BucketState::used or WindowState::count
  TimePoint at{};          // BucketState::last or WindowState::start

  [[nodiscard]] bool exists() const { return scale != 0 || used != 0 || at != TimePoint{}; }
  bool operator==(const TierState&) const = default;
};
static_assert(sizeof(TierState) == sizeof(BucketState) && sizeof(TierState) == sizeof(WindowState));

struct Tier {
  std::string name;  // "" in a limit of one rate
  Algorithm algorithm;
  bool shadow = false;

  [[nodiscard]] std::int64_t capacity() const;
  [[nodiscard]] Micros window() const;
  [[nodiscard]] Rate rate() const;
  // Two tiers with one identity share their state: name, algorithm, alignment and W.
  [[nodiscard]] std::string identity() const;
  // One operation on this tier alone. Not for logs.
  Decision apply(TierState& state, Operation operation, std::int64_t cost, TimePoint now) const;

  bool operator==(const Tier&) const = default;
};

class Definition : public std::enable_shared_from_this<Definition> {
 public:
  enum class Shape : std::uint8_t { bucket, tiers, log, counter };
  static constexpr std::size_t kMaxTiers = 8;

  // Fails unless there are 1 to kMaxTiers tiers, named apart from each other unless there is just one, and
  // logs and counters stand alone and do not watch only.
  static Result<std::shared_ptr<const Definition>> make(std::vector<Tier> tiers, bool shadow);

  // Applies `operation` to the tiers' states (in the tiers' order) and answers for the deciding tier. A
  // refused cost changes nothing. Shapes bucket, tiers and counter.
  Decision apply(std::span<TierState> states, Operation operation, std::int64_t cost, TimePoint now) const;
  // Whether `apply` comes to one bucket's take or peek of a state in its own unit, as it nearly always does;
  // then this is the same, in line.
  [[nodiscard]] bool asks_exactly(const TierState& state, Operation operation) const {
    const bool asks = operation == Operation::take || operation == Operation::peek;
    return asks && bucket_ != nullptr && bucket_->counts_exactly(std::bit_cast<BucketState>(state));
  }
  Decision ask_exactly(TierState& state, Operation operation, std::int64_t cost, TimePoint now) const;
  // The same for a log.
  Decision apply(LogState& state, Operation operation, std::int64_t cost, TimePoint now) const;
  // The answer when nothing is known of the key.
  [[nodiscard]] Decision apply_to_nothing(Operation operation, std::int64_t cost, TimePoint now) const;
  // Whether waiting could ever let `cost` pass.
  [[nodiscard]] bool can_hold(std::int64_t cost) const { return cost <= most_; }
  // A refusal becomes `shadow` under a shadow definition.
  void judge(Decision& decision) const {
    const bool is_refused = decision.verdict == Verdict::limited || decision.verdict == Verdict::never;
    if (shadow_ && is_refused) decision.verdict = Verdict::shadow;
  }

  [[nodiscard]] Shape shape() const { return shape_; }
  [[nodiscard]] const std::vector<Tier>& tiers() const { return tiers_; }
  [[nodiscard]] bool is_shadow() const { return shadow_; }
  [[nodiscard]] const TokenBucket& bucket() const { return *bucket_; }  // shape bucket
  [[nodiscard]] const SlidingLog& log() const { return std::get<SlidingLog>(tiers_.front().algorithm); }
  [[nodiscard]] const Counter& counter() const { return std::get<Counter>(tiers_.front().algorithm); }
  // The tier with the smallest capacity that refuses in earnest; the first of equals. If all only watch, of
  // all.
  [[nodiscard]] const Tier& strictest() const { return tiers_[strictest_]; }
  // Stands for the rules: differs, but for a chance of 2^-32, from that of other rules.
  [[nodiscard]] std::uint32_t digest() const { return digest_; }
  static constexpr std::string_view kBucketState = "", kTiersState = "t";
  // Part of the key under which a store keeps the state: it differs where state may not be shared.
  [[nodiscard]] const std::string& state_kind() const { return state_kind_; }

  bool operator==(const Definition& other) const {
    return tiers_ == other.tiers_ && shadow_ == other.shadow_;
  }

 private:
  Definition(std::vector<Tier> tiers, bool shadow);
  Decision ask_all(std::span<TierState> states, Operation operation, std::int64_t cost, TimePoint now) const;
  Decision give_all(std::span<TierState> states, Operation operation, std::int64_t cost, TimePoint now) const;

  std::vector<Tier> tiers_;
  bool shadow_;
  Shape shape_;
  std::size_t strictest_;
  std::int64_t most_;                    // that can_hold
  const TokenBucket* bucket_ = nullptr;  // into tiers_, for shape bucket
  std::string state_kind_;
  std::uint32_t digest_;
};

using DefinitionPtr = std::shared_ptr<const Definition>;

// The decision is made where the caller wants it: a copy of what was just written stalls.
[[gnu::always_inline]] inline Decision Definition::ask_exactly(TierState& state, Operation operation,
                                                               std::int64_t cost, TimePoint now) const {
  auto own = std::bit_cast<BucketState>(state);
  Decision decision = bucket_->ask_exactly(own, operation, cost, now);
  state = std::bit_cast<TierState>(own);
  judge(decision);
  return decision;
}

}  // namespace allowd::limiter
