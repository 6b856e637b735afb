// SPDX-License-Identifier: MIT
//
// The limits that queries can name: those of the config, and a cache of those that applications bring along.
//
// Ownership  Limits are shared: a query in flight keeps the definition that it began with.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/config/config.h"
#include "agent/stats/registry.h"
#include "protocol/request.h"
#include "tsl/robin_map.h"

namespace allowd::decide {

struct Limit {
  std::string name;
  std::string tag;  // see store::make_limit_tag
  limiter::TokenBucket bucket;
  config::FailurePolicy on_failure;
  limiter::Micros deadline;
  stats::DecisionCounters* decisions;  // never null
  stats::DecisionCounters* overflows;  // of tier "overflow"; never null
};

using LimitPtr = std::shared_ptr<const Limit>;

class LimitTable {
 public:
  // Parsed inline definitions that are kept.
  static constexpr std::size_t kMaxInline = 1024;

  LimitTable(const config::Config& config, stats::Registry& registry);
  LimitTable(const LimitTable&) = delete;
  LimitTable& operator=(const LimitTable&) = delete;

  // The configured limit of that name; null: there is none.
  [[nodiscard]] const LimitPtr* find(std::string_view name) const;
  // The limit that an application defined.
  [[nodiscard]] Result<LimitPtr> find_or_parse(const protocol::InlineLimit& definition);

  [[nodiscard]] const std::vector<LimitPtr>& configured() const { return configured_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const;
  };
  using Map = tsl::robin_map<std::string, LimitPtr, Hash, std::equal_to<>>;

  stats::Registry& registry_;
  limiter::Micros default_deadline_;
  std::vector<LimitPtr> configured_;
  mutable const LimitPtr* last_found_ = nullptr;  // most queries name the limit that the one before named
  Map by_name_;
  Map inline_;                            // by the definition's encoding
  std::deque<std::string> inline_order_;  // oldest first
};

}  // namespace allowd::decide
