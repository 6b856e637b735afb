// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/password_file.h"

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/busy_threads.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::store {
namespace {

using testing::TemporaryDirectory;

std::string written(const TemporaryDirectory& directory, const std::string& content) {
  const std::string path = directory / "password";
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST_CASE("password file: one newline at its end does not belong to the password") {
  const TemporaryDirectory directory;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"p", "p"}, {"p\n", "p"}, {"p\r\n", "p"}, {"p\n\n", "p\n"}, {" p ", " p "}, {"a\nb", "a\nb"}};
  for (const auto& [content, password] : cases) {
    auto read = read_password_file(written(directory, content));
    REQUIRE(read);
    CHECK(*read == password);
  }
}

TEST_CASE("password file: what is none is refused with its path") {
  const TemporaryDirectory directory;
  const auto check = [](const std::string& path, const std::string& problem) {
    auto read = read_password_file(path);
    REQUIRE_FALSE(read);
    CHECK(read.error().message == "the password file " + path + " " + problem);
  };
  check(directory / "none", "cannot be read: No such file or directory");
  check(written(directory, ""), "is empty");
  check(written(directory, "\n"), "is empty");
  check(written(directory, std::string(64 * 1024 + 1, 'x')), "is over 64 KiB");
  const std::string fifo = directory / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  check(fifo, "is not a file");
}

TEST_CASE("password file: it is read beside the loop, and one that hangs is asked once") {
  loop::Loop loop;
  const TemporaryDirectory directory;
  const std::string path = written(directory, "p\n");
  PasswordFile file(loop);
  testing::BusyThreads busy(loop);
  std::vector<std::string> answers;
  const auto note = [&](Result<std::string> read) { answers.push_back(read ? *read : read.error().message); };
  file.read(path, note);
  file.forget();
  file.read(path, note);
  CHECK(answers.empty());
  file.read("/other", note);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].find("waits for another one") != std::string::npos);
  file.read(path, note);
  busy.let_go();
  testing::turn_until(loop, [&] { return answers.size() == 2; });
  testing::turn_on(loop);
  CHECK(answers.size() == 2);
  CHECK(answers[1] == "p");
}

}  // namespace
}  // namespace allowd::store
