// SPDX-License-Identifier: MIT
//
// The token bucket as design states it, in exact rationals of whole permits: no units, no gcd, nothing shared
// with agent/limiter but the types of its answers. Slow and simple on purpose.
#pragma once

#include <algorithm>
#include <cstdint>

#include "agent/limiter/decision.h"
#include "agent/limiter/token_bucket.h"

namespace allowd::testing {

__extension__ using Wide = __int128;

class Rational {
 public:
  Rational(Wide numerator, Wide denominator = 1) : numerator_(numerator), denominator_(denominator) {
    const Wide divisor = gcd(numerator_ < 0 ? -numerator_ : numerator_, denominator_);
    numerator_ /= divisor;
    denominator_ /= divisor;
  }

  friend Rational operator+(const Rational& a, const Rational& b) {
    return {a.numerator_ * b.denominator_ + b.numerator_ * a.denominator_, a.denominator_ * b.denominator_};
  }
  friend Rational operator-(const Rational& a, const Rational& b) {
    return {a.numerator_ * b.denominator_ - b.numerator_ * a.denominator_, a.denominator_ * b.denominator_};
  }
  friend Rational operator*(const Rational& a, const Rational& b) {
    return {a.numerator_ * b.numerator_, a.denominator_ * b.denominator_};
  }
  friend Rational operator/(const Rational& a, const Rational& b) {
    return {a.numerator_ * b.denominator_, a.denominator_ * b.numerator_};
  }
  friend bool operator<(const Rational& a, const Rational& b) {
    return a.numerator_ * b.denominator_ < b.numerator_ * a.denominator_;
  }
  friend bool operator==(const Rational& a, const Rational& b) = default;

  // Both expect a value that is not negative.
  [[nodiscard]] std::int64_t floor() const { return static_cast<std::int64_t>(numerator_ / denominator_); }
  [[nodiscard]] std::int64_t ceil() const {
    return static_cast<std::int64_t>((numerator_ + denominator_ - 1) / denominator_);
  }

 private:
  static Wide gcd(Wide a, Wide b) {
    while (b != 0) {
      const Wide rest = a % b;
      a = b;
      b = rest;
    }
    return a == 0 ? 1 : a;
  }

  Wide numerator_;
  Wide denominator_;
};

class ExactBucket {
 public:
  ExactBucket(limiter::Rate rate, std::int64_t burst)
      : per_micro_(rate.count, rate.period.count()), burst_(burst) {}

  limiter::Decision apply(limiter::Operation operation, std::int64_t cost, limiter::TimePoint now) {
    using limiter::Operation;
    using limiter::Verdict;
    const std::int64_t at = std::max(now.time_since_epoch().count(), is_known_ ? last_ : INT64_MIN);
    Rational missing = is_known_ ? missing_at(at) : Rational(0);
    Verdict verdict = Verdict::ok;
    const bool may_be_refused = operation == Operation::take || operation == Operation::peek;
    if (may_be_refused && burst_ < Rational(cost)) {
      verdict = Verdict::never;
    } else if (may_be_refused && cost > 0 && burst_ < missing + Rational(cost)) {
      verdict = Verdict::limited;
    }
    const limiter::Decision refused = describe(missing, cost, verdict);
    if (verdict != Verdict::ok || cost == 0 || operation == Operation::peek) return refused;
    if (operation == Operation::refund) {
      if (!is_known_) return refused;
      missing = missing < Rational(cost) ? Rational(0) : missing - Rational(cost);
    } else {
      const Rational wanted = missing + Rational(cost);
      const Rational most = burst_ < missing ? missing : burst_;
      missing = most < wanted ? most : wanted;
    }
    is_known_ = true;
    last_ = at;
    missing_ = missing;
    return describe(missing, cost, Verdict::ok);
  }

 private:
  [[nodiscard]] Rational missing_at(std::int64_t at) const {
    const Rational back = per_micro_ * Rational(Wide{at} - last_);
    return missing_ < back ? Rational(0) : missing_ - back;
  }

  [[nodiscard]] limiter::Decision describe(const Rational& missing, std::int64_t cost,
                                           limiter::Verdict verdict) const {
    limiter::Decision decision;
    decision.verdict = verdict;
    decision.capacity = burst_.floor();
    decision.remaining = burst_ < missing ? 0 : (burst_ - missing).floor();
    decision.reset_after = limiter::Micros{(missing / per_micro_).ceil()};
    decision.window = limiter::Micros{(burst_ / per_micro_).ceil()};
    if (!(missing == Rational(0))) {
      const Rational lacking = missing + Rational(decision.remaining + 1) - burst_;
      decision.more_after = limiter::Micros{(lacking / per_micro_).ceil()};
    }
    if (verdict == limiter::Verdict::never) decision.retry_after = limiter::kNever;
    if (verdict == limiter::Verdict::limited) {
      decision.retry_after = limiter::Micros{((missing + Rational(cost) - burst_) / per_micro_).ceil()};
    }
    return decision;
  }

  Rational per_micro_;  // permits
  Rational burst_;
  bool is_known_ = false;
  Rational missing_{0};
  std::int64_t last_ = 0;
};

}  // namespace allowd::testing
