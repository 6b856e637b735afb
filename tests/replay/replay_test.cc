// SPDX-License-Identifier: MIT
#include "agent/replay/replay.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

namespace allowd::replay {
namespace {

config::Config config_of_api() {
  auto config = config::parse_config("[limits.api]\nrate = \"1/s\"\n", "f");
  REQUIRE(config);
  return *config;
}

// A query of so many bytes.
std::string line_of(std::size_t size) {
  std::string line = R"({"t": 0, "key": "k"})";
  line.insert(1, size - line.size(), ' ');
  return line;
}

// "" or what went wrong; `answers` counts the lines that were written.
std::string replayed(const std::string& history, std::size_t& answers) {
  std::istringstream in(history);
  std::ostringstream out, report;
  const Failure problem = run(config_of_api(), {.limit = "api", .random = {}}, in, out, report);
  const std::string text = out.str();
  answers = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  return problem ? problem->message : "";
}

TEST_CASE("replay: a line may have 64 KiB, and one that is longer is named") {
  const std::string longest = line_of(kMaxLineBytes), too_long = line_of(kMaxLineBytes + 1);
  std::size_t answers = 0;
  CHECK(replayed(longest + "\n" + longest, answers) == "");  // its end need not stand
  CHECK(answers == 2);
  CHECK(replayed(longest + "\n\n" + too_long + "\n" + longest + "\n", answers) ==
        "line 3: is over 65536 bytes");
  CHECK(answers == 1);
  CHECK(replayed(too_long, answers) == "line 1: is over 65536 bytes");
  CHECK(replayed(std::string(kMaxLineBytes + 1, ' '), answers) == "line 1: is over 65536 bytes");
}

TEST_CASE("replay: a history may be empty, and so may lines of it") {
  std::size_t answers = 0;
  CHECK(replayed("", answers) == "");
  CHECK(replayed("\n \r\n\n", answers) == "");
  CHECK(answers == 0);
}

}  // namespace
}  // namespace allowd::replay
