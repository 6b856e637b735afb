// SPDX-License-Identifier: MIT
//
// What a generator prints when it is done: the same fields for every peer, as text for people or as one line
// of JSON for bench.py. README.md explains them.
//
// Units    Microseconds (`_us`) and seconds, as the names say.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "closed_loop.h"

namespace allowd::bench {

struct Report {
  LoopPlan plan;
  std::uint64_t keys = 0;
  LoopFigures figures;
  std::vector<std::pair<std::string, std::string>> more;  // name, and a value that is valid JSON
  bool with_histogram = false;                            // in the text too; the JSON always has it
};

void print_report(const Report& report, bool as_json);

[[nodiscard]] std::string to_hex(std::span<const std::byte> bytes);

}  // namespace allowd::bench
