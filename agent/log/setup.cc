// SPDX-License-Identifier: MIT
#include "agent/log/setup.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace allowd::log {
namespace {

// JOURNAL_STREAM names the device and inode of the stream that the journal reads.
bool stderr_is_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  unsigned long long device = 0, inode = 0;
  struct stat status {};
  return stream != nullptr && std::sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
         ::fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

class SyslogPriority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    char digit = '6';  // informational
    if (message.level == spdlog::level::critical) digit = '2';
    if (message.level == spdlog::level::err) digit = '3';
    if (message.level == spdlog::level::warn) digit = '4';
    if (message.level <= spdlog::level::debug) digit = '7';
    out.push_back(digit);
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<SyslogPriority>();
  }
};

}  // namespace

void set_up() {
  auto logger = std::make_shared<spdlog::logger>("allowd", std::make_shared<spdlog::sinks::stderr_sink_st>());
  if (stderr_is_journal()) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<SyslogPriority>('*').set_pattern("<%*>%v");
    logger->set_formatter(std::move(formatter));
  } else {
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  }
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace allowd::log
