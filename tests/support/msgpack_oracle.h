// SPDX-License-Identifier: MIT
//
// What msgpack-c makes of some bytes, as the second opinion about our own Cursor: does a whole value stand at
// their front, and where does it end?
#pragma once

#include <cstddef>
#include <cstdint>
#include <msgpack.hpp>
#include <string_view>

namespace allowd::testing {

struct OracleOpinion {
  enum class Kind {
    whole,       // a value of `size` bytes
    incomplete,  // more bytes are needed
    malformed,   // no bytes that follow could make it a value
    too_deep,    // containers nest deeper than allowed
  };
  Kind kind = Kind::incomplete;
  std::size_t size = 0;
  std::size_t depth = 0;  // of containers that were open where the bytes ended
};

namespace detail {

class ShapeVisitor : public msgpack::null_visitor {
 public:
  explicit ShapeVisitor(std::size_t allowed) : allowed_(allowed) {}

  bool start_array(std::uint32_t) { return open(); }
  bool start_map(std::uint32_t) { return open(); }
  bool end_array() { return close(); }
  bool end_map() { return close(); }
  void parse_error(std::size_t, std::size_t) { is_malformed = true; }
  void insufficient_bytes(std::size_t, std::size_t) { is_incomplete = true; }

  std::size_t depth = 0;
  bool is_too_deep = false;
  bool is_malformed = false;
  bool is_incomplete = false;

 private:
  bool open() {
    is_too_deep = is_too_deep || depth == allowed_;
    ++depth;
    return !is_too_deep;
  }
  bool close() {
    --depth;
    return true;
  }

  std::size_t allowed_;
};

}  // namespace detail

[[nodiscard]] inline OracleOpinion ask_msgpack(std::string_view bytes, std::size_t depth) {
  detail::ShapeVisitor visitor(depth);
  std::size_t offset = 0;
  // What it returns for bytes that go on behind the value has changed between versions; the flags have not.
  static_cast<void>(msgpack::parse(bytes.data(), bytes.size(), offset, visitor));
  using Kind = OracleOpinion::Kind;
  if (visitor.is_too_deep) return {Kind::too_deep, 0, depth};
  if (visitor.is_malformed) return {Kind::malformed, 0, visitor.depth};
  if (visitor.is_incomplete) return {Kind::incomplete, 0, visitor.depth};
  return {Kind::whole, offset, 0};
}

}  // namespace allowd::testing
