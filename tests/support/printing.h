// SPDX-License-Identifier: MIT
//
// How doctest shows our values when a check fails.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace doctest {

template <>
struct StringMaker<std::string_view> {
  static String convert(std::string_view text) { return (std::string(text)).c_str(); }
};

template <>
struct StringMaker<const char*> {
  static String convert(const char* text) { return text; }
};

template <>
struct StringMaker<std::vector<std::string>> {
  static String convert(const std::vector<std::string>& all) {
    std::string text;
    for (const std::string& each : all) text += (text.empty() ? "{" : ", ") + each;
    return (text.empty() ? "{}" : text + "}").c_str();
  }
};

template <class Rep, class Period>
struct StringMaker<std::chrono::duration<Rep, Period>> {
  static String convert(std::chrono::duration<Rep, Period> span) {
    return toString(
               std::chrono::duration_cast<std::chrono::duration<std::int64_t, std::micro>>(span).count()) +
           " us";
  }
};

template <class Clock, class Duration>
struct StringMaker<std::chrono::time_point<Clock, Duration>> {
  static String convert(std::chrono::time_point<Clock, Duration> time) {
    return StringMaker<Duration>::convert(time.time_since_epoch());
  }
};

}  // namespace doctest
