// SPDX-License-Identifier: MIT
#include "protocol/quoted.h"

#include <charconv>

namespace allowd::protocol {

std::string quoted(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xf]};
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::optional<std::vector<std::string>> split_words(std::string_view line) {
  std::vector<std::string> words;
  bool is_in_word = false, is_in_quotes = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (!is_in_quotes && (c == ' ' || c == '\t')) {
      is_in_word = false;
      continue;
    }
    if (!is_in_word) words.emplace_back();
    is_in_word = true;
    if (c == '"') {
      is_in_quotes = !is_in_quotes;
    } else if (c == '\\' && is_in_quotes) {
      const std::string_view rest = line.substr(i + 1);
      unsigned byte = 0;
      if (rest.starts_with('"') || rest.starts_with('\\')) {
        words.back() += rest.front();
        i += 1;
      } else if (rest.size() >= 3 && rest.front() == 'x' &&
                 std::from_chars(rest.data() + 1, rest.data() + 3, byte, 16).ptr == rest.data() + 3) {
        words.back() += static_cast<char>(byte);
        i += 3;
      } else {
        return std::nullopt;
      }
    } else {
      words.back() += c;
    }
  }
  if (is_in_quotes) return std::nullopt;
  return words;
}

}  // namespace allowd::protocol
