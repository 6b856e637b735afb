// SPDX-License-Identifier: MIT
//
// The script's parts, one for each shape of limit: script.cc sets what they share in front of them.
#pragma once

#include <string_view>

namespace allowd::store {

[[nodiscard]] std::string_view bucket_part();
[[nodiscard]] std::string_view tier_part();
[[nodiscard]] std::string_view log_part();
[[nodiscard]] std::string_view counter_part();

}  // namespace allowd::store
