// SPDX-License-Identifier: MIT
//
// Bits from the system's source, which nobody outside can guess.
#pragma once

#include <cstdint>
#include <random>

namespace allowd {

[[nodiscard]] inline std::uint64_t random_bits() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace allowd
