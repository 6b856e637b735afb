// SPDX-License-Identifier: MIT
//
// The few options a benchmark program takes: `--name value` and `--flag`.
//
// Units    Seconds on the command line, std::chrono in the program.
// Errors   UsageError with a line that says which option is wrong; main adds the usage text and exits with 2.

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

namespace allowd::bench {

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class CommandLine {
 public:
  // Takes options of these names and no others, each at most once.
  CommandLine(int argc, const char* const* argv, const std::set<std::string>& with_value,
              const std::set<std::string>& flags);

  [[nodiscard]] bool has(const std::string& name) const { return values_.contains(name); }
  [[nodiscard]] std::string text(const std::string& name, const std::string& otherwise) const;
  [[nodiscard]] std::string required_text(const std::string& name) const;
  [[nodiscard]] std::uint64_t number(const std::string& name, std::uint64_t otherwise, std::uint64_t least,
                                     std::uint64_t most) const;
  // A number with a point, above zero.
  [[nodiscard]] double decimal(const std::string& name, double otherwise, double most) const;
  [[nodiscard]] std::chrono::nanoseconds seconds(const std::string& name, double otherwise) const;

 private:
  std::map<std::string, std::string> values_;  // a flag's is empty
};

}  // namespace allowd::bench
