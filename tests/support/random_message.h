// SPDX-License-Identifier: MIT
//
// Random MessagePack values in every encoding there is, and ways of damaging them. One seed always gives the
// same values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "tests/support/encode.h"

namespace allowd::testing {

class RandomMessages {
 public:
  explicit RandomMessages(std::uint64_t seed) : random_(seed) {}

  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  // A well-formed value whose containers nest at most `depth` levels deep.
  [[nodiscard]] std::string value(std::size_t depth) {
    switch (below(depth > 0 ? 12 : 8)) {
      case 0: return encode::nil();
      case 1: return encode::boolean(below(2) == 1);
      case 2: return encode::one(static_cast<unsigned>(below(2) == 1 ? below(0x80) : 0xe0 + below(0x20)));
      case 3: return number(0xcc);
      case 4: return number(0xd0);
      case 5: return below(2) == 1 ? encode::tagged(0xca, random_(), 4) : encode::tagged(0xcb, random_(), 8);
      case 6: return text();
      case 7: return extension();
      case 8:
      case 9: return container(0x90, 0xdc, 1, depth);
      default: return container(0x80, 0xde, 2, depth);
    }
  }

  [[nodiscard]] std::string noise(std::size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(below(256));
    return bytes;
  }

  // The bytes after one to three blows: a byte changed, a bit flipped, some dropped or put in, the end cut.
  [[nodiscard]] std::string damaged(std::string bytes) {
    for (std::uint64_t blows = 1 + below(3); blows > 0 && !bytes.empty(); --blows) {
      const std::size_t at = below(bytes.size());
      switch (below(5)) {
        case 0: bytes[at] = static_cast<char>(below(256)); break;
        case 1:
          bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << below(8)));
          break;
        case 2: bytes.erase(at, 1 + below(4)); break;
        case 3: bytes.insert(at, noise(1 + below(4))); break;
        default: bytes.resize(at); break;
      }
    }
    return bytes;
  }

 private:
  // One of the four widths of integers whose tags begin at `first`.
  std::string number(unsigned first) {
    const auto width = static_cast<unsigned>(below(4));
    return encode::tagged(first + width, random_(), std::size_t{1} << width);
  }

  std::string text() {
    const std::string bytes = noise(below(70));
    switch (below(7)) {
      case 0: return encode::str8(bytes);
      case 1: return encode::str16(bytes);
      case 2: return encode::str32(bytes);
      case 3: return encode::bin8(bytes);
      case 4: return encode::bin16(bytes);
      case 5: return encode::bin32(bytes);
      default: return encode::str(bytes);
    }
  }

  // A type byte stands in front of the payload.
  std::string extension() {
    const std::uint64_t kind = below(8);
    if (kind < 5)
      return encode::one(static_cast<unsigned>(0xd4 + kind)) + noise(1 + (std::size_t{1} << kind));
    const std::size_t size = below(40);
    const auto width = static_cast<unsigned>(kind - 5);
    return encode::tagged(0xc7 + width, size, std::size_t{1} << width) + noise(1 + size);
  }

  // An array or map in one of its three encodings.
  std::string container(unsigned fix_tag, unsigned tag16, std::size_t values_per_item, std::size_t depth) {
    const std::size_t count = below(6);
    std::string bytes;
    switch (below(3)) {
      case 0: bytes = encode::one(fix_tag | static_cast<unsigned>(count)); break;
      case 1: bytes = encode::tagged(tag16, count, 2); break;
      default: bytes = encode::tagged(tag16 + 1, count, 4); break;
    }
    for (std::size_t i = 0; i < count * values_per_item; ++i) bytes += value(depth - 1);
    return bytes;
  }

  std::mt19937_64 random_;
};

}  // namespace allowd::testing
