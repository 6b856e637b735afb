// SPDX-License-Identifier: MIT
//
// Log lines of the agent. They go through spdlog, whose headers stay in this room: formatting is compiled
// once here and not into every file that logs.
//
// Errors     A wrong format string does not compile.
#pragma once

#include <fmt/core.h>

#include <cstdint>

namespace allowd::log {

enum class Level : std::uint8_t { info, warn, error, critical };

void write(Level level, fmt::string_view format, fmt::format_args values);

template <class... Values>
void info(fmt::format_string<Values...> format, Values&&... values) {
  write(Level::info, format, fmt::make_format_args(values...));
}
template <class... Values>
void warn(fmt::format_string<Values...> format, Values&&... values) {
  write(Level::warn, format, fmt::make_format_args(values...));
}
template <class... Values>
void error(fmt::format_string<Values...> format, Values&&... values) {
  write(Level::error, format, fmt::make_format_args(values...));
}
template <class... Values>
void critical(fmt::format_string<Values...> format, Values&&... values) {
  write(Level::critical, format, fmt::make_format_args(values...));
}

}  // namespace allowd::log
