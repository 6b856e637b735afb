// SPDX-License-Identifier: MIT
//
// How often this program has asked for memory. Programs that link allocations.cc count; it replaces the
// global operators new and delete, and stands apart so that no compiler inlines one without the other.
#pragma once

#include <cstddef>

namespace allowd::testing {

[[nodiscard]] std::size_t allocations();

}  // namespace allowd::testing
