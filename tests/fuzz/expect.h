// SPDX-License-Identifier: MIT
//
// A promise that must hold for every input; a broken one is a crash, which is what libFuzzer looks for.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace allowd::fuzz {

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

}  // namespace allowd::fuzz
