// SPDX-License-Identifier: MIT
#include "agent/config/units.h"

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/printing.h"

namespace allowd::config {
namespace {

using namespace std::chrono_literals;
using limiter::Micros;
using limiter::Rate;

TEST_CASE("units: every unit of time has its length") {
  const std::vector<std::pair<std::string, Micros>> durations = {
      {"1us", 1us},
      {"20ms", 20ms},
      {"7s", 7s},
      {"7sec", 7s},
      {"7second", 7s},
      {"3m", 3min},
      {"3min", 3min},
      {"3minute", 3min},
      {"2h", 2h},
      {"2hour", 2h},
      {"5d", 24h * 5},
      {"5day", 24h * 5},
      {"1week", 24h * 7},
      {"007s", 7s},
      {"90s", 90s},
      {"400d", 24h * 400},
      {"34560000000000us", 24h * 400},
  };
  for (const auto& [text, expected] : durations) {
    CAPTURE(text);
    auto parsed = parse_duration(text);
    REQUIRE(parsed);
    CHECK(*parsed == expected);
  }
}

void check_bad_duration(std::string_view text, std::string_view reason) {
  CAPTURE(text);
  auto parsed = parse_duration(text);
  CHECK_FALSE(parsed);
  if (parsed) return;
  CHECK(parsed.error().code == Error::Code::bad_request);
  CHECK(parsed.error().message == reason);
}

TEST_CASE("units: what is no duration is refused with a reason") {
  const std::string_view form = "a duration is a whole number and a unit, like \"20ms\"";
  const std::string_view unit =
      "a duration needs a unit: us, ms, s (sec, second), m (min, minute), h (hour), d (day) or week";
  for (const char* text : {"", "s", "ms", "-1s", "+1s", " 1s", "x", "99999999999999999999s", ".5s"})
    check_bad_duration(text, form);
  for (const char* text : {"20", "20 ms", "20ms ", "1.5s", "1S", "1MS", "1days", "1weeks", "1ns", "1y",
                           "1month", "1s1s", "1e3s", "1µs", "0x1s"})
    check_bad_duration(text, unit);
  check_bad_duration(std::string("1s\0", 3), unit);
  check_bad_duration("0s", "a duration must be longer than 0");
  check_bad_duration("0us", "a duration must be longer than 0");
  for (const char* text : {"401d", "58week", "9223372036854775807week", "34560000000001us"})
    check_bad_duration(text, "a duration must be at most 400 days");
}

TEST_CASE("units: a rate is a count per unit or per duration") {
  const std::vector<std::pair<std::string, Rate>> rates = {
      {"100/s", {100, 1s}},
      {"1/us", {1, 1us}},
      {"5/10s", {5, 10s}},
      {"1000/day", {1000, 24h}},
      {"1/week", {1, 24h * 7}},
      {"3/min", {3, 1min}},
      {"3/1min", {3, 1min}},
      {"2/90m", {2, 90min}},
      {"10000000/s", {10'000'000, 1s}},
      {"9223372036854775807/s", {INT64_MAX, 1s}},
  };
  for (const auto& [text, expected] : rates) {
    CAPTURE(text);
    auto parsed = parse_rate(text);
    REQUIRE(parsed);
    CHECK(*parsed == expected);
  }
}

void check_bad_rate(std::string_view text, std::string_view reason) {
  CAPTURE(text);
  auto parsed = parse_rate(text);
  CHECK_FALSE(parsed);
  if (!parsed) CHECK(parsed.error().message == reason);
}

TEST_CASE("units: what is no rate is refused with a reason") {
  const std::string_view form = "a rate is a count per time, like \"100/s\", \"5/10s\" or \"1000/day\"";
  for (const char* text :
       {"", "100", "100/", "/s", "100s", "-5/s", "1.5/s", "100 /s", "99999999999999999999/s", "unlimited"})
    check_bad_rate(text, form);
  check_bad_rate("0/s", "a rate must be at least 1 per period");
  const std::string unit =
      "a duration needs a unit: us, ms, s (sec, second), m (min, minute), h (hour), d (day) or week";
  check_bad_rate("5/10", "the rate's period: " + unit);
  check_bad_rate("5/1s/s", "the rate's period: " + unit);
  check_bad_rate("5/ s", "the rate's period: a duration is a whole number and a unit, like \"20ms\"");
  check_bad_rate("5/fortnight", "the rate's period: a duration is a whole number and a unit, like \"20ms\"");
  check_bad_rate("5/0s", "the rate's period: a duration must be longer than 0");
  check_bad_rate("5/401d", "the rate's period: a duration must be at most 400 days");
}

TEST_CASE("units: durations are printed in the largest unit that divides them, and read back the same") {
  const std::vector<std::pair<Micros, std::string>> durations = {
      {1us, "1us"},       {999us, "999us"},    {1ms, "1ms"},          {1001us, "1001us"}, {1s, "1s"},
      {1500ms, "1500ms"}, {60s, "1min"},       {90s, "90s"},          {1h, "1h"},         {36h, "36h"},
      {24h, "1day"},      {24h * 14, "2week"}, {24h * 400, "400day"},
  };
  for (const auto& [duration, text] : durations) {
    CHECK(print(duration) == text);
    auto parsed = parse_duration(text);
    REQUIRE(parsed);
    CHECK(*parsed == duration);
  }
}

TEST_CASE("units: rates are printed as people write them, and read back the same") {
  const std::vector<std::pair<Rate, std::string>> rates = {
      {{100, 1s}, "100/s"}, {{5, 10s}, "5/10s"},      {{1000, 24h}, "1000/day"}, {{1, 24h * 7}, "1/week"},
      {{3, 1min}, "3/min"}, {{3, 90min}, "3/90min"},  {{7, 1us}, "7/us"},        {{7, 333us}, "7/333us"},
      {{2, 1h}, "2/h"},     {{2, 24h * 2}, "2/2day"},
  };
  for (const auto& [rate, text] : rates) {
    CHECK(print(rate) == text);
    auto parsed = parse_rate(text);
    REQUIRE(parsed);
    CHECK(*parsed == rate);
  }
}

}  // namespace
}  // namespace allowd::config
