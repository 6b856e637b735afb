// SPDX-License-Identifier: MIT

#include "request_table.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace allowd::bench {
namespace {

constexpr std::size_t kDraws = 2'000'000;  // then they begin again

// SplitMix64 (Steele, Lea, Flood 2014) and Fisher-Yates, by hand: what std::shuffle yields is up to the
// library.
class FixedRandom {
 public:
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  // From 0 up to, not including, 1.
  double fraction() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t next() noexcept {
    state_ += 0x9e37'79b9'7f4a'7c15U;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58'476d'1ce4'e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d0'49bb'1331'11ebU;
    return mixed ^ (mixed >> 31);
  }

  std::uint64_t state_ = 1;
};

std::vector<std::uint32_t> shuffled(std::uint64_t count) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  FixedRandom random;
  for (std::uint64_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[random.below(left)]);
  }
  return order;
}

// Draws by the inverse of the cumulated weights.
std::vector<std::uint32_t> drawn_by_zipf(std::uint64_t keys, double exponent) {
  std::vector<double> weight_up_to(keys);
  double sum = 0;
  for (std::uint64_t rank = 0; rank < keys; ++rank) {
    sum += std::pow(static_cast<double>(rank + 1), -exponent);
    weight_up_to[rank] = sum;
  }
  std::vector<std::uint32_t> draws(kDraws);
  FixedRandom random;
  for (std::uint32_t& draw : draws) {
    const auto found = std::upper_bound(weight_up_to.begin(), weight_up_to.end(), random.fraction() * sum);
    draw = static_cast<std::uint32_t>(
        std::min<std::ptrdiff_t>(found - weight_up_to.begin(), static_cast<std::ptrdiff_t>(keys) - 1));
  }
  return draws;
}

}  // namespace

RequestTable::RequestTable(const std::string& prefix, std::uint64_t keys, std::optional<double> zipf_exponent,
                           const Encode& encode) {
  assert(keys > 0 && keys <= kMaxKeys);
  for (const std::uint32_t number : shuffled(keys)) {
    std::array<char, 16> digits{};
    std::snprintf(digits.data(), digits.size(), "%07u", number);
    const std::string request = encode(prefix + digits.data());
    if (bytes_.empty()) {
      request_bytes_ = request.size();
      bytes_.reserve(request_bytes_ * keys);
    }
    assert(request.size() == request_bytes_);
    const auto* begin = reinterpret_cast<const std::byte*>(request.data());
    bytes_.insert(bytes_.end(), begin, begin + request.size());
  }
  if (zipf_exponent) {
    drawn_ = drawn_by_zipf(keys, *zipf_exponent);
  }
}

}  // namespace allowd::bench
