// SPDX-License-Identifier: MIT
#include "agent/replay/summary.h"

#include <doctest/doctest.h>

namespace allowd::replay {
namespace {

using limiter::Verdict;

void add(Summary& summary, std::string_view key, Verdict verdict, int times = 1) {
  limiter::Decision decision;
  decision.verdict = verdict;
  for (int i = 0; i < times; ++i) summary.add(key, decision);
}

TEST_CASE("summary: counts what became of the lines, and names the most refused keys") {
  Summary summary;
  add(summary, "a", Verdict::ok, 5);
  add(summary, "a", Verdict::limited, 2);
  add(summary, "b\n", Verdict::never, 3);
  CHECK(summary.text() ==
        "10 lines: 5 allowed, 2 limited, 3 never\n"
        "most refused keys:\n"
        "  3  \"b\\x0a\"\n"
        "  2  \"a\"\n");
}

TEST_CASE("summary: nothing refused is nothing more to say") {
  Summary summary;
  CHECK(summary.text() == "0 lines: 0 allowed, 0 limited, 0 never\n");
}

TEST_CASE("summary: what only would have been refused is told apart") {
  Summary summary;
  add(summary, "a", Verdict::shadow, 2);
  CHECK(summary.text() ==
        "2 lines: 2 allowed, 0 limited, 0 never\n"
        "2 of the allowed would have been refused (shadow)\n"
        "most refused keys:\n"
        "  2  \"a\"\n");
}

TEST_CASE("summary: ten keys are shown, and the heaviest are found among more keys than are kept") {
  Summary summary;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 10; ++i) add(summary, "heavy" + std::to_string(i), Verdict::limited, 100 + i);
    for (int i = 0; i < 8000; ++i) {
      add(summary, "light" + std::to_string(round * 8000 + i), Verdict::limited);
    }
  }
  const std::string text = summary.text();
  CHECK(text.find("  327  \"heavy9\"\n  324  \"heavy8\"\n") != std::string::npos);
  CHECK(text.find("heavy0") != std::string::npos);
  CHECK(text.find("light") == std::string::npos);
}

}  // namespace
}  // namespace allowd::replay
