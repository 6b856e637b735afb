// SPDX-License-Identifier: MIT
//
// Which configuration the agent runs under, for `info`.
#pragma once

#include <cstdint>
#include <string>

namespace allowd::admin {

struct ConfigStatus {
  std::string hash;             // see config::hash_of
  std::int64_t generation = 1;  // counts successful loads
  std::string reload_error;     // of the last reload; "" when it succeeded, or there was none
};

}  // namespace allowd::admin
