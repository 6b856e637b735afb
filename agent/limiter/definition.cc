// SPDX-License-Identifier: MIT
#include "agent/limiter/definition.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

namespace allowd::limiter {
namespace {

template <class State, class Rules>
Decision apply_as(const Rules& rules, TierState& state, Operation operation, std::int64_t cost,
                  TimePoint now) {
  auto own = std::bit_cast<State>(state);
  const Decision decision = rules.apply(own, operation, cost, now);
  state = std::bit_cast<TierState>(own);
  return decision;
}

bool stands_alone(const Tier& tier) {
  return std::holds_alternative<SlidingLog>(tier.algorithm) ||
         std::holds_alternative<Counter>(tier.algorithm);
}

Definition::Shape shape_of(const std::vector<Tier>& tiers) {
  const Tier& first = tiers.front();
  if (std::holds_alternative<SlidingLog>(first.algorithm)) return Definition::Shape::log;
  if (std::holds_alternative<Counter>(first.algorithm)) return Definition::Shape::counter;
  const bool is_plain = tiers.size() == 1 && first.name.empty() && !first.shadow;
  if (is_plain && std::holds_alternative<TokenBucket>(first.algorithm)) return Definition::Shape::bucket;
  return Definition::Shape::tiers;
}

std::uint32_t digest_of(const std::vector<Tier>& tiers, bool shadow) {
  std::uint64_t digest = 0xcbf29ce484222325;  // FNV-1a over numbers and letters, folded
  const auto add = [&](std::uint64_t value) { digest = (digest ^ value) * 0x100000001b3; };
  add(shadow ? 1 : 0);
  for (const Tier& tier : tiers) {
    for (const char letter : tier.identity()) add(static_cast<unsigned char>(letter));
    const Rate rate = tier.rate();
    for (const std::int64_t number : {rate.count, std::int64_t{rate.period.count()}, tier.capacity()}) {
      for (int shift = 0; shift < 64; shift += 8) add(static_cast<std::uint64_t>(number) >> shift & 0xff);
    }
    add(tier.shadow ? 1 : 0);
  }
  return static_cast<std::uint32_t>(digest ^ digest >> 32);
}

std::size_t index_of_strictest(const std::vector<Tier>& tiers) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < tiers.size(); ++i) {
    const bool is_graver = tiers[best].shadow && !tiers[i].shadow;
    const bool is_smaller =
        tiers[best].shadow == tiers[i].shadow && tiers[i].capacity() < tiers[best].capacity();
    if (is_graver || is_smaller) best = i;
  }
  return best;
}

// Whether refusal `a` outweighs `b`: what never passes before any wait, then the longer wait.
bool is_worse(const Decision& a, const Decision& b) {
  if (b.verdict == Verdict::never) return false;
  return a.verdict == Verdict::never || a.retry_after > b.retry_after;
}

}  // namespace

std::string_view name_of(const Algorithm& algorithm) {
  static constexpr std::array<std::string_view, 5> kNames = {"token_bucket", "fixed_window", "sliding_window",
                                                             "sliding_log", "counter"};
  return kNames[algorithm.index()];
}

std::int64_t Tier::capacity() const {
  if (const auto* bucket = std::get_if<TokenBucket>(&algorithm)) return bucket->burst();
  return rate().count;
}

Micros Tier::window() const {
  if (const auto* bucket = std::get_if<TokenBucket>(&algorithm)) return bucket->window();
  return rate().period;
}

Rate Tier::rate() const {
  return std::visit([](const auto& rules) { return rules.rate(); }, algorithm);
}

std::string Tier::identity() const {
  static constexpr std::string_view kLetters = "bfslc";
  std::string text(1, kLetters[algorithm.index()]);
  if (const auto* window = std::get_if<FixedWindow>(&algorithm)) {
    if (window->align() == FixedWindow::Align::clock) text = "a";
  }
  if (!std::holds_alternative<TokenBucket>(algorithm)) text += std::to_string(window().count());
  return text + ":" + name;
}

Decision Tier::apply(TierState& state, Operation operation, std::int64_t cost, TimePoint now) const {
  if (const auto* rules = std::get_if<TokenBucket>(&algorithm))
    return apply_as<BucketState>(*rules, state, operation, cost, now);
  if (const auto* rules = std::get_if<FixedWindow>(&algorithm))
    return apply_as<WindowState>(*rules, state, operation, cost, now);
  if (const auto* rules = std::get_if<SlidingWindow>(&algorithm))
    return apply_as<WindowState>(*rules, state, operation, cost, now);
  return apply_as<WindowState>(std::get<Counter>(algorithm), state, operation, cost, now);
}

Result<DefinitionPtr> Definition::make(std::vector<Tier> tiers, bool shadow) {
  const auto bad = [](std::string reason) { return Error{Error::Code::bad_request, std::move(reason)}; };
  if (tiers.empty()) return bad("there must be at least one tier");
  if (tiers.size() > kMaxTiers) return bad("there may be at most " + std::to_string(kMaxTiers) + " tiers");
  for (auto tier = tiers.begin(); tier != tiers.end(); ++tier) {
    const bool is_second =
        std::any_of(tiers.begin(), tier, [&](const Tier& t) { return t.name == tier->name; });
    if (tier->name == "overflow")
      return bad("a tier cannot be named overflow: what the overflow bucket decides is");
    if (is_second) return bad("two tiers are named \"" + tier->name + "\"");
    if (stands_alone(*tier) && (tiers.size() > 1 || !tier->name.empty())) {
      return bad(std::string(name_of(tier->algorithm)) + " cannot be a tier; it stands alone");
    }
  }
  return DefinitionPtr(new Definition(std::move(tiers), shadow));
}

Definition::Definition(std::vector<Tier> tiers, bool shadow)
    : tiers_(std::move(tiers)),
      shadow_(shadow),
      shape_(shape_of(tiers_)),
      strictest_(index_of_strictest(tiers_)),
      most_(strictest().shadow ? std::numeric_limits<std::int64_t>::max() : strictest().capacity()),
      digest_(digest_of(tiers_, shadow)) {
  const std::string window = std::to_string(tiers_.front().window().count());
  switch (shape_) {
    case Shape::bucket:
      state_kind_ = kBucketState;
      bucket_ = &std::get<TokenBucket>(tiers_.front().algorithm);
      break;
    case Shape::tiers: state_kind_ = kTiersState; break;
    case Shape::log: state_kind_ = "l" + window + "."; break;
    case Shape::counter: state_kind_ = "c" + window + "."; break;
  }
}

// Decisions are made where the caller wants them and changed in place: a copy of what was just written
// stalls.
Decision Definition::apply(std::span<TierState> states, Operation operation, std::int64_t cost,
                           TimePoint now) const {
  const bool asks = operation == Operation::take || operation == Operation::peek;
  Decision decision = bucket_ != nullptr
                          ? apply_as<BucketState>(*bucket_, states.front(), operation, cost, now)
                      : tiers_.size() == 1 && !tiers_.front().shadow
                          ? tiers_.front().apply(states.front(), operation, cost, now)
                      : asks ? ask_all(states, operation, cost, now)
                             : give_all(states, operation, cost, now);
  judge(decision);
  return decision;
}

Decision Definition::apply(LogState& state, Operation operation, std::int64_t cost, TimePoint now) const {
  Decision decision = log().apply(state, operation, cost, now);
  judge(decision);
  return decision;
}

Decision Definition::apply_to_nothing(Operation operation, std::int64_t cost, TimePoint now) const {
  if (shape_ == Shape::log) {
    LogState nothing;
    return apply(nothing, operation, cost, now);
  }
  std::array<TierState, kMaxTiers> nothing{};
  return apply(std::span(nothing).first(tiers_.size()), operation, cost, now);
}

// take and peek: all or none.
Decision Definition::ask_all(std::span<TierState> states, Operation operation, std::int64_t cost,
                             TimePoint now) const {
  std::array<Decision, kMaxTiers> found;
  std::optional<std::size_t> refused, watched;  // the worst that refuses, and that would
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    found[i] = tiers_[i].apply(states[i], Operation::peek, cost, now);
    found[i].tier = static_cast<std::uint8_t>(i);
    if (found[i].verdict == Verdict::ok) continue;
    auto& worst = tiers_[i].shadow ? watched : refused;
    if (!worst || is_worse(found[i], found[*worst])) worst = i;
  }
  if (refused) return found[*refused];
  std::optional<std::size_t> least;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if (found[i].verdict != Verdict::ok) continue;
    if (operation == Operation::take) found[i] = tiers_[i].apply(states[i], operation, cost, now);
    found[i].tier = static_cast<std::uint8_t>(i);
    if (!least || found[i].remaining < found[*least].remaining) least = i;
  }
  if (!watched) return found[*least];
  found[*watched].verdict = Verdict::shadow;
  return found[*watched];
}

// refund and force: on every tier.
Decision Definition::give_all(std::span<TierState> states, Operation operation, std::int64_t cost,
                              TimePoint now) const {
  std::optional<Decision> least;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    Decision decision = tiers_[i].apply(states[i], operation, cost, now);
    decision.tier = static_cast<std::uint8_t>(i);
    if (!least || decision.remaining < least->remaining) least = decision;
  }
  return *least;
}

}  // namespace allowd::limiter
