// SPDX-License-Identifier: MIT
#include "agent/config/config_table.h"

#include <numeric>

namespace allowd::config {
namespace {

// Levenshtein's distance, for "did you mean".
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view name, std::span<const std::string_view> known) {
  constexpr std::size_t kTooFar = 3;
  const auto best = std::min_element(known.begin(), known.end(),
                                     [&](auto a, auto b) { return distance(name, a) < distance(name, b); });
  if (best == known.end() || distance(name, *best) > kTooFar) return "";
  return "; did you mean " + std::string(*best) + "?";
}

}  // namespace allowd::config
