// SPDX-License-Identifier: MIT
//
// How names and keys, which may be any bytes, are shown to people and typed by them: between double
// quotes, with \" and \\ and \xNN for what is not printable ASCII.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace allowd::protocol {

[[nodiscard]] std::string quoted(std::string_view bytes);

// Splits a line into words at blanks; a word may be quoted, also in part. Nothing when a quote or escape is
// broken.
[[nodiscard]] std::optional<std::vector<std::string>> split_words(std::string_view line);

}  // namespace allowd::protocol
