// SPDX-License-Identifier: MIT
#include "protocol/value.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <msgpack.hpp>
#include <type_traits>

namespace allowd::protocol {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 does not deduce aggregates by itself

// The length of the UTF-8 sequence at the front of `text`, or 0 when it is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte_at(0);
  const std::size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 0 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xe0 && byte_at(1) < 0xa0) return 0;  // overlong
  if (first == 0xed && byte_at(1) > 0x9f) return 0;  // a surrogate
  if (first == 0xf0 && byte_at(1) < 0x90) return 0;  // overlong
  if (first == 0xf4 && byte_at(1) > 0x8f) return 0;  // beyond U+10FFFF
  return length;
}

template <class Number>
std::string print(Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) return "null";  // JSON has no other word for it
  }
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number);
  return {text, end.ptr};
}

void add_lines(const Value& value, const std::string& path, std::string& out) {
  const auto below = [&](std::string_view name) {
    return path.empty() ? std::string(name) : path + "." + std::string(name);
  };
  if (const auto* map = value.as_map()) {
    for (const auto& [name, entry] : *map) add_lines(entry, below(name), out);
  } else {
    const std::string* text = value.as_string();
    out += path + ": " + (text != nullptr ? *text : value.to_json()) + "\n";
  }
}

}  // namespace

const Value* Value::find(std::string_view name) const {
  const Map* map = as_map();
  if (map == nullptr) return nullptr;
  for (const auto& [key, value] : *map) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Value::encode(ByteBuffer& out) const {
  msgpack::packer<ByteBuffer> packer(out);
  std::visit(Overloaded{
                 [&](std::monostate) { packer.pack_nil(); },
                 [&](const List& list) {
                   packer.pack_array(static_cast<std::uint32_t>(list.size()));
                   for (const Value& item : list) item.encode(out);
                 },
                 [&](const Map& map) {
                   packer.pack_map(static_cast<std::uint32_t>(map.size()));
                   for (const auto& [name, item] : map) {
                     packer.pack(name);
                     item.encode(out);
                   }
                 },
                 [&](const auto& scalar) { packer.pack(scalar); },
             },
             content_);
}

std::string quote_json(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const char c = text.front();
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + "\"";
}

std::string Value::to_json() const {
  return std::visit(Overloaded{
                        [](std::monostate) { return std::string("null"); },
                        [](bool value) { return std::string(value ? "true" : "false"); },
                        [](const std::string& value) { return quote_json(value); },
                        [](const List& list) {
                          std::string out = "[";
                          for (const Value& item : list) out += (out.size() > 1 ? ", " : "") + item.to_json();
                          return out + "]";
                        },
                        [](const Map& map) {
                          std::string out = "{";
                          for (const auto& [name, item] : map) {
                            out += (out.size() > 1 ? ", " : "") + quote_json(name) + ": " + item.to_json();
                          }
                          return out + "}";
                        },
                        [](auto number) { return print(number); },
                    },
                    content_);
}

std::string Value::to_text() const {
  std::string out;
  add_lines(*this, "", out);
  return out;
}

namespace {

// msgpack-c's visitor interface, building a Value; the cursor has found the value's end and checked its
// depth.
class ValueBuilder : public msgpack::null_visitor {
 public:
  explicit ValueBuilder(Value& root) : root_(root) {}

  bool visit_nil() { return add({}); }
  bool visit_boolean(bool value) { return add(value); }
  bool visit_positive_integer(std::uint64_t value) { return add(value); }
  bool visit_negative_integer(std::int64_t value) { return add(value); }
  bool visit_float32(float value) { return add(static_cast<double>(value)); }
  bool visit_float64(double value) { return add(value); }
  bool visit_str(const char* text, std::uint32_t size) { return add(std::string(text, size)); }
  bool visit_bin(const char* text, std::uint32_t size) { return add(std::string(text, size)); }
  bool visit_ext(const char*, std::uint32_t) { return add({}); }  // none is ours: it keeps its place as nil
  bool start_array(std::uint32_t) { return open(Value::List{}); }
  bool end_array() { return close(); }
  bool start_map(std::uint32_t) { return open(Value::Map{}); }
  bool start_map_key() { return levels_.back().is_key = true; }
  bool end_map_key() { return true; }
  bool end_map() { return close(); }

 private:
  struct Level {
    Value value;
    std::string name;
    bool is_key = false;
  };

  bool add(Value value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (level.is_key) {
      level.is_key = false;
      level.name = value.as_string() != nullptr ? *value.as_string() : value.to_json();
    } else if (auto* map = level.value.as_map()) {
      map->emplace_back(std::move(level.name), std::move(value));
    } else {
      level.value.as_list()->push_back(std::move(value));
    }
    return true;
  }
  bool open(Value value) {
    levels_.push_back({std::move(value), {}, false});
    return true;
  }
  bool close() {
    Value done = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(done));
  }

  Value& root_;
  std::vector<Level> levels_;
};

}  // namespace

bool read_value(Cursor& cursor, Value& value, std::size_t depth) {
  const auto* start = reinterpret_cast<const char*>(cursor.position());
  if (!cursor.skip(depth)) return false;
  const auto size = static_cast<std::size_t>(reinterpret_cast<const char*>(cursor.position()) - start);
  ValueBuilder builder(value);
  std::size_t offset = 0;
  return msgpack::parse(start, size, offset, builder) && offset == size;
}

}  // namespace allowd::protocol
