// SPDX-License-Identifier: MIT
#include "agent/log/log.h"

#include <spdlog/spdlog.h>

namespace allowd::log {
namespace {

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::info: return spdlog::level::info;
    case Level::warn: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
    case Level::critical: break;
  }
  return spdlog::level::critical;
}

}  // namespace

void write(Level level, fmt::string_view format, fmt::format_args values) {
  if (!spdlog::should_log(level_of(level))) return;
  const std::string line = fmt::vformat(format, values);
  spdlog::log(level_of(level), spdlog::string_view_t(line));
}

}  // namespace allowd::log
