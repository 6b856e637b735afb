// SPDX-License-Identifier: MIT
//
// A table of the TOML file that hands out its values by name, typed, and knows how to complain about them.
//
// Ownership  A Table borrows from the parsed file.
// Errors     Whatever is wrong is thrown as a Problem, which names the place, the key and the reason.
#pragma once

#include <toml++/toml.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/config/units.h"

namespace allowd::config {

// What is wrong with the file, and where. Thrown inside this room only; parse_config turns it into an Error.
struct Problem {
  toml::source_region where;
  std::string key;
  std::string reason;
};

// "; did you mean x?" for the name that is nearest among the known ones, or nothing if none is near.
[[nodiscard]] std::string nearest(std::string_view name, std::span<const std::string_view> known);

// One table of the file: hands out its values by name, typed, and knows how to complain about them.
class Table {
 public:
  Table(const toml::table& table, std::string path) : table_(table), path_(std::move(path)) {}

  // Fails on keys that are in neither list. `later` are features that this version does not have yet.
  void allow_only(std::span<const std::string_view> known,
                  std::span<const std::string_view> later = {}) const {
    for (const auto& [key, node] : table_) {
      const std::string_view name = key.str();
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      if (std::find(later.begin(), later.end(), name) != later.end()) {
        throw Problem{key.source(), full(name), "is not supported by this version"};
      }
      throw Problem{key.source(), full(name), "unknown key" + nearest(name, known)};
    }
  }

  [[nodiscard]] bool has(std::string_view name) const { return table_.contains(name); }
  [[noreturn]] void fail(std::string_view name, std::string reason) const {
    const toml::node* node = table_.get(name);
    throw Problem{node != nullptr ? node->source() : table_.source(), full(name), std::move(reason)};
  }
  [[noreturn]] void fail(std::string reason) const {
    throw Problem{table_.source(), path_, std::move(reason)};
  }

  [[nodiscard]] bool is_text(std::string_view name) const {
    const toml::node* node = table_.get(name);
    return node != nullptr && node->is_string();
  }
  std::optional<std::string> text(std::string_view name) const {
    const toml::node* node = table_.get(name);
    if (node == nullptr) return std::nullopt;
    const auto* value = node->as_string();
    if (value == nullptr) fail(name, "must be a string");
    return value->get();
  }
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most) const {
    const toml::node* node = table_.get(name);
    if (node == nullptr) return std::nullopt;
    const auto* value = node->as_integer();
    if (value == nullptr || value->get() < least || value->get() > most) {
      fail(name, "must be an integer from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return value->get();
  }
  std::optional<bool> boolean(std::string_view name) const {
    const toml::node* node = table_.get(name);
    if (node == nullptr) return std::nullopt;
    const auto* value = node->as_boolean();
    if (value == nullptr) fail(name, "must be true or false");
    return value->get();
  }
  std::optional<limiter::Micros> duration(std::string_view name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    auto parsed = parse_duration(*value);
    if (!parsed) fail(name, parsed.error().message);
    return *parsed;
  }
  std::optional<Table> table(std::string_view name) const {
    const toml::node* node = table_.get(name);
    if (node == nullptr) return std::nullopt;
    if (node->as_table() == nullptr) fail(name, "must be a table");
    return Table(*node->as_table(), full(name));
  }
  std::vector<Table> tables(std::string_view name) const {
    const toml::node* node = table_.get(name);
    std::vector<Table> all;
    if (node == nullptr) return all;
    const auto* array = node->as_array();
    if (array == nullptr) fail(name, "must be an array of tables");
    for (const toml::node& element : *array) {
      if (element.as_table() == nullptr) fail(name, "must be an array of tables");
      all.emplace_back(*element.as_table(), full(name) + "[" + std::to_string(all.size()) + "]");
    }
    return all;
  }
  std::vector<std::string> texts(std::string_view name) const {
    const toml::node* node = table_.get(name);
    std::vector<std::string> all;
    if (node == nullptr) return all;
    const auto* array = node->as_array();
    if (array == nullptr) fail(name, "must be an array of strings");
    for (const toml::node& element : *array) {
      if (element.as_string() == nullptr) fail(name, "must be an array of strings");
      all.push_back(element.as_string()->get());
    }
    return all;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [key, node] : table_) all.emplace_back(key.str());
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  [[nodiscard]] std::string full(std::string_view name) const {
    return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
  }

  const toml::table& table_;
  std::string path_;
};

}  // namespace allowd::config
