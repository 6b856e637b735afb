// SPDX-License-Identifier: MIT
//
// The main function of every test program, compiled once. Both names: a precompiled header has read the
// declarations.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
