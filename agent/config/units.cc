// SPDX-License-Identifier: MIT
#include "agent/config/units.h"

#include <array>
#include <charconv>
#include <optional>

namespace allowd::config {
namespace {

using limiter::Micros;

constexpr Micros kLongest = std::chrono::days(400);
constexpr std::string_view kUnitsHelp = "us, ms, s (sec, second), m (min, minute), h (hour), d (day) or week";

struct Unit {
  std::string_view name;
  Micros length;
};

// Of several names for one length the first is the one to print.
constexpr std::array<Unit, 13> kUnits = {{{"week", std::chrono::weeks(1)},
                                          {"day", std::chrono::days(1)},
                                          {"d", std::chrono::days(1)},
                                          {"h", std::chrono::hours(1)},
                                          {"hour", std::chrono::hours(1)},
                                          {"min", std::chrono::minutes(1)},
                                          {"m", std::chrono::minutes(1)},
                                          {"minute", std::chrono::minutes(1)},
                                          {"s", std::chrono::seconds(1)},
                                          {"sec", std::chrono::seconds(1)},
                                          {"second", std::chrono::seconds(1)},
                                          {"ms", std::chrono::milliseconds(1)},
                                          {"us", Micros(1)}}};

Error bad(std::string message) { return {Error::Code::bad_request, std::move(message)}; }

std::optional<Micros> unit_length(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) return unit.length;
  }
  return std::nullopt;
}

// Takes an unsigned decimal number off the front.
std::optional<std::int64_t> take_number(std::string_view& text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

Result<Micros> parse_duration(std::string_view text) {
  std::string_view rest = text;
  const auto number = take_number(rest);
  if (!number) return bad("a duration is a whole number and a unit, like \"20ms\"");
  const auto unit = unit_length(rest);
  if (!unit) return bad("a duration needs a unit: " + std::string(kUnitsHelp));
  if (*number < 1) return bad("a duration must be longer than 0");
  if (*number > kLongest / *unit) return bad("a duration must be at most 400 days");
  return *number * *unit;
}

Result<limiter::Rate> parse_rate(std::string_view text) {
  constexpr std::string_view kForm = "a rate is a count per time, like \"100/s\", \"5/10s\" or \"1000/day\"";
  std::string_view rest = text;
  const auto count = take_number(rest);
  if (!count || rest.empty() || rest.front() != '/') return bad(std::string(kForm));
  if (*count < 1) return bad("a rate must be at least 1 per period");
  rest.remove_prefix(1);
  if (const auto unit = unit_length(rest)) return limiter::Rate{*count, *unit};
  if (rest.empty()) return bad(std::string(kForm));
  auto period = parse_duration(rest);
  if (!period) return std::move(period.error()).within("the rate's period");
  return limiter::Rate{*count, *period};
}

std::string print(Micros duration) {
  for (const Unit& unit : kUnits) {
    if (duration % unit.length == Micros{0})
      return std::to_string(duration / unit.length) + std::string(unit.name);
  }
  return std::to_string(duration.count()) + "us";
}

std::string print(const limiter::Rate& rate) {
  for (const Unit& unit : kUnits) {
    if (rate.period == unit.length) return std::to_string(rate.count) + "/" + std::string(unit.name);
  }
  return std::to_string(rate.count) + "/" + print(rate.period);
}

}  // namespace allowd::config
