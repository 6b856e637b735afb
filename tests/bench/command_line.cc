// SPDX-License-Identifier: MIT

#include "command_line.h"

#include <charconv>

namespace allowd::bench {
namespace {

constexpr double kMostSeconds = 86'400;

template <class Number>
std::optional<Number> parse_all(const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stopped == end ? std::optional(value) : std::nullopt;
}

}  // namespace

CommandLine::CommandLine(int argc, const char* const* argv, const std::set<std::string>& with_value,
                         const std::set<std::string>& flags) {
  for (int n = 1; n < argc; ++n) {
    const std::string name = argv[n];
    if (has(name)) {
      throw UsageError("given twice: " + name);
    }
    if (flags.contains(name)) {
      values_[name] = "";
    } else if (!with_value.contains(name)) {
      throw UsageError("unknown option: " + name);
    } else if (++n == argc) {
      throw UsageError("needs a value: " + name);
    } else {
      values_[name] = argv[n];
    }
  }
}

std::string CommandLine::text(const std::string& name, const std::string& otherwise) const {
  return has(name) ? values_.at(name) : otherwise;
}

std::string CommandLine::required_text(const std::string& name) const {
  if (!has(name) || values_.at(name).empty()) {
    throw UsageError("missing: " + name);
  }
  return values_.at(name);
}

std::uint64_t CommandLine::number(const std::string& name, std::uint64_t otherwise, std::uint64_t least,
                                  std::uint64_t most) const {
  if (!has(name)) {
    return otherwise;
  }
  const std::optional<std::uint64_t> value = parse_all<std::uint64_t>(values_.at(name));
  if (!value || *value < least || *value > most) {
    throw UsageError(name + " takes a number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return *value;
}

double CommandLine::decimal(const std::string& name, double otherwise, double most) const {
  const std::optional<double> value = has(name) ? parse_all<double>(values_.at(name)) : otherwise;
  if (!value || !(*value > 0 && *value <= most)) {
    throw UsageError(name + " takes a number above 0 and up to " + std::to_string(most));
  }
  return *value;
}

std::chrono::nanoseconds CommandLine::seconds(const std::string& name, double otherwise) const {
  const std::optional<double> value = has(name) ? parse_all<double>(values_.at(name)) : otherwise;
  if (!value || !(*value >= 0 && *value <= kMostSeconds)) {
    throw UsageError(name + " takes seconds, such as 2 or 0.5");
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(*value));
}

}  // namespace allowd::bench
