// SPDX-License-Identifier: MIT
//
// Bytes as tests write them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace allowd::testing {

[[nodiscard]] inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

[[nodiscard]] inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// "94 00 07" as three bytes; blanks are passed over.
[[nodiscard]] inline std::string from_hex(std::string_view hex) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw std::invalid_argument("not a hex digit");
  };
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); ++i) {
    if (hex[i] == ' ') continue;
    if (i + 1 == hex.size()) throw std::invalid_argument("half a byte");
    bytes += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
    ++i;
  }
  return bytes;
}

[[nodiscard]] inline std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 0xf];
  }
  return hex;
}

// A copy that ends where the memory ends, so that AddressSanitizer sees a read past it.
class ExactCopy {
 public:
  explicit ExactCopy(std::string_view bytes) : data_(new std::byte[bytes.size()]), size_(bytes.size()) {
    for (std::size_t i = 0; i < size_; ++i) data_[i] = static_cast<std::byte>(bytes[i]);
  }
  [[nodiscard]] std::span<const std::byte> span() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_;
};

}  // namespace allowd::testing
