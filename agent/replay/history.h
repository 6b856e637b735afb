// SPDX-License-Identifier: MIT
//
// The lines of a history: JSON in, the same JSON with a decision out.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "agent/config/config.h"
#include "agent/limiter/decision.h"

namespace allowd::replay {

struct Step {
  nlohmann::ordered_json line;                   // as it came
  std::optional<config::LimitConfig> new_limit;  // `limit`: replaces the definition; nothing is asked
  limiter::Operation operation = limiter::Operation::take;
  limiter::TimePoint at{};
  std::string key;
  std::int64_t cost = 1;
};

[[nodiscard]] Result<Step> read_step(std::string_view text, const std::string& limit_name);

// Adds the decision's fields, named as in the protocol.
void add_decision(nlohmann::ordered_json& line, const limiter::Decision& decision, std::string_view tier,
                  std::string_view source);

}  // namespace allowd::replay
