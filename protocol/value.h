// SPDX-License-Identifier: MIT
//
// A tree of plain values: what `info` and `stats` carry, on either side of the wire.
//
// Ownership  Owns everything below it. Maps keep the order in which their entries were added.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/byte_buffer.h"
#include "protocol/cursor.h"

namespace allowd::protocol {

class Value {
 public:
  using List = std::vector<Value>;
  using Map = std::vector<std::pair<std::string, Value>>;

  Value() = default;  // nil
  Value(bool value) : content_(value) {}
  Value(std::int64_t value) : content_(value) {}
  Value(int value) : content_(std::int64_t{value}) {}
  Value(std::uint64_t value) : content_(value) {}
  Value(double value) : content_(value) {}
  Value(std::string value) : content_(std::move(value)) {}
  Value(std::string_view value) : content_(std::string(value)) {}
  Value(const char* value) : content_(std::string(value)) {}
  Value(List value) : content_(std::move(value)) {}
  Value(Map value) : content_(std::move(value)) {}

  [[nodiscard]] Map* as_map() { return std::get_if<Map>(&content_); }
  [[nodiscard]] List* as_list() { return std::get_if<List>(&content_); }
  [[nodiscard]] const Map* as_map() const { return std::get_if<Map>(&content_); }
  [[nodiscard]] const List* as_list() const { return std::get_if<List>(&content_); }
  [[nodiscard]] const std::string* as_string() const { return std::get_if<std::string>(&content_); }
  // The entry of that name, or null when this is no map or has none.
  [[nodiscard]] const Value* find(std::string_view name) const;

  void encode(ByteBuffer& out) const;
  [[nodiscard]] std::string to_json() const;
  // One `path: value` line for each leaf, path elements joined by dots.
  [[nodiscard]] std::string to_text() const;

 private:
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, List, Map> content_;
};

// Reads one value; false when it is malformed, incomplete or nested more than `depth` levels deep.
[[nodiscard]] bool read_value(Cursor& cursor, Value& value, std::size_t depth = 8);

// Text between double quotes, escaped as JSON wants it; bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string quote_json(std::string_view text);

}  // namespace allowd::protocol
