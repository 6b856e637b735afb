// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/password_watch.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::store {
namespace {

using namespace std::chrono_literals;

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

TEST_CASE("password watch: another password is told of once, and nothing else is") {
  loop::Loop loop;
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "password";
  write(path, "first\n");
  PasswordWatch watch(loop, 5ms);
  PasswordWatch stopped(loop, 5ms);
  loop::Timer timer(loop);
  int told = 0;
  watch.start(path, "first", [&] { ++told; });
  stopped.start(path, "first", [&] { FAIL("it was stopped"); });
  bool is_time = false;
  timer.once(60ms, [&] {  // both have looked
    stopped.stop();
    std::filesystem::remove(path);
    is_time = true;
  });
  testing::turn_until(loop, [&] { return is_time; });
  CHECK(told == 0);
  timer.once(60ms, [&] { write(path, "second\n"); });
  testing::turn_until(loop, [&] { return told > 0; });
  is_time = false;
  write(path, "third\n");
  timer.once(60ms, [&] { is_time = true; });
  testing::turn_until(loop, [&] { return is_time; });
  CHECK(told == 1);
}

TEST_CASE("password watch: it may be stopped, or begin anew, by whom it calls") {
  loop::Loop loop;
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "password";
  write(path, "second");
  PasswordWatch watch(loop, 5ms);
  int told = 0;
  watch.start(path, "first", [&] {
    ++told;
    watch.stop();
    watch.start(path, "first", [&] { ++told; });
  });
  testing::turn_until(loop, [&] { return told == 2; });
}

}  // namespace
}  // namespace allowd::store
