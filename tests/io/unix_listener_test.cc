// SPDX-License-Identifier: MIT
#include "agent/io/unix_listener.h"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/printing.h"
#include "tests/support/raw_socket.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::io {
namespace {

using testing::RawSocket;
using testing::TemporaryDirectory;
using testing::turn_until;

std::unique_ptr<UnixListener> open_at(
    loop::Loop& loop, const UnixListener::Options& options, std::function<void()> on_connection = [] {}) {
  auto listener = UnixListener::open(loop, options, std::move(on_connection));
  if (!listener) FAIL(listener.error().message);
  return std::move(*listener);
}

std::string why_refused(loop::Loop& loop, const UnixListener::Options& options) {
  auto listener = UnixListener::open(loop, options, [] {});
  return listener ? "it was opened" : listener.error().message;
}

struct stat status_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status;
}
bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

TEST_CASE("unix listener: announces whoever connects") {
  const TemporaryDirectory directory;
  loop::Loop loop;
  int connections = 0;
  const auto listener = open_at(loop, {.path = directory / "s", .group = {}}, [&] { ++connections; });
  CHECK(listener->path() == directory / "s");
  const auto client = RawSocket::connect_to(directory / "s");
  REQUIRE(client.is_open());
  turn_until(loop, [&] { return connections == 1; });
  // While it is not taken no other is announced.
  const auto second = RawSocket::connect_to(directory / "s");
  CHECK(second.is_open());
  testing::turn_on(loop);
  CHECK(connections == 1);
}

TEST_CASE("unix listener: the socket has exactly the mode that was asked for, whatever the umask") {
  for (const mode_t mask : {mode_t{0}, mode_t{022}, mode_t{0777}}) {
    for (const std::uint32_t mode : {0660U, 0600U, 0666U, 0777U}) {
      const TemporaryDirectory directory;
      loop::Loop loop;
      const mode_t before = ::umask(mask);
      auto listener = UnixListener::open(loop, {.path = directory / "s", .mode = mode, .group = {}}, [] {});
      ::umask(before);
      REQUIRE(listener);
      CHECK((status_of(directory / "s").st_mode & 07777) == mode);
      CHECK(S_ISSOCK(status_of(directory / "s").st_mode));
    }
  }
}

TEST_CASE("unix listener: the socket belongs to the group that was asked for") {
  const group* own = ::getgrgid(::getgid());
  REQUIRE(own != nullptr);
  const std::string name = own->gr_name;
  const TemporaryDirectory directory;
  loop::Loop loop;
  const auto listener = open_at(loop, {.path = directory / "s", .group = name});
  CHECK(status_of(directory / "s").st_gid == ::getgid());
}

TEST_CASE("unix listener: a group that does not exist is an error, and leaves no socket behind") {
  const TemporaryDirectory directory;
  loop::Loop loop;
  CHECK(why_refused(loop, {.path = directory / "s", .group = "no-such-group"}) ==
        directory / "s" + ": no group is named no-such-group");
  CHECK_FALSE(exists(directory / "s"));
}

TEST_CASE("unix listener: a socket that nobody listens on is replaced") {
  const TemporaryDirectory directory;
  const std::string path = directory / "s";
  RawSocket::listen_at(path).close();
  REQUIRE(exists(path));
  const ino_t leftover = status_of(path).st_ino;
  // So that the inode's number cannot be used again.
  std::filesystem::rename(path, directory / "kept");
  std::filesystem::create_hard_link(directory / "kept", path);
  loop::Loop loop;
  int connections = 0;
  const auto listener = open_at(loop, {.path = path, .group = {}}, [&] { ++connections; });
  CHECK(status_of(path).st_ino != leftover);
  const auto client = RawSocket::connect_to(path);
  REQUIRE(client.is_open());
  turn_until(loop, [&] { return connections == 1; });
}

TEST_CASE("unix listener: a socket that somebody listens on is left alone") {
  const TemporaryDirectory directory;
  const std::string path = directory / "s";
  const auto somebody = RawSocket::listen_at(path);
  const ino_t before = status_of(path).st_ino;
  loop::Loop loop;
  CHECK(why_refused(loop, {.path = path, .group = {}}) ==
        path + ": somebody is listening on this socket already");
  CHECK(status_of(path).st_ino == before);
  CHECK(RawSocket::connect_to(path).is_open());
}

TEST_CASE("unix listener: a live socket whose backlog is full is left alone too") {
  const TemporaryDirectory directory;
  const std::string path = directory / "s";
  const auto somebody = RawSocket::listen_at(path);
  std::vector<RawSocket> waiting;
  for (int i = 0; i < 64; ++i) {
    waiting.push_back(RawSocket::connect_to(path));
    if (!waiting.back().is_open()) break;
  }
  REQUIRE_FALSE(waiting.back().is_open());
  loop::Loop loop;
  CHECK(why_refused(loop, {.path = path, .group = {}}) ==
        path + ": somebody is listening on this socket already");
  CHECK(exists(path));
}

TEST_CASE("unix listener: what is no socket is never touched") {
  const TemporaryDirectory directory;
  const std::string path = directory / "s";
  loop::Loop loop;
  SUBCASE("a file") {
    std::ofstream(path) << "precious";
    CHECK(why_refused(loop, {.path = path, .group = {}}) ==
          path + ": exists and is not a socket; it is left alone");
    std::string content;
    std::ifstream(path) >> content;
    CHECK(content == "precious");
  }
  SUBCASE("a directory") {
    std::filesystem::create_directory(path);
    CHECK(why_refused(loop, {.path = path, .group = {}}) ==
          path + ": exists and is not a socket; it is left alone");
    CHECK(std::filesystem::is_directory(path));
  }
  SUBCASE("a link, even to a dead socket") {
    RawSocket::listen_at(directory / "elsewhere").close();
    std::filesystem::create_symlink(directory / "elsewhere", path);
    CHECK(why_refused(loop, {.path = path, .group = {}}) ==
          path + ": exists and is not a socket; it is left alone");
    CHECK(std::filesystem::is_symlink(path));
    CHECK(exists(directory / "elsewhere"));
  }
}

TEST_CASE("unix listener: a path of 107 bytes is the longest") {
  const TemporaryDirectory directory;
  const auto of_size = [&](std::size_t size) {
    return directory / std::string(size - directory.path().size() - 1, 's');
  };
  loop::Loop loop;
  {
    const auto listener = open_at(loop, {.path = of_size(107), .group = {}});
    CHECK(exists(of_size(107)));
  }
  CHECK_FALSE(exists(of_size(107)));
  CHECK(why_refused(loop, {.path = of_size(108), .group = {}}) ==
        of_size(108) + ": is 108 bytes long; a socket's path may have 107");
  CHECK_FALSE(exists(of_size(108)));
  CHECK_FALSE(exists(of_size(108) + ".lock"));
}

TEST_CASE("unix listener: a directory that is not there is an error that names the path") {
  const TemporaryDirectory directory;
  loop::Loop loop;
  const std::string why = why_refused(loop, {.path = directory / "none/s", .group = {}});
  CHECK(why.starts_with(directory / "none/s"));
  CHECK(why.find("No such file or directory") != std::string::npos);
}

TEST_CASE("unix listener: the socket goes with its listener, the lock file stays") {
  const TemporaryDirectory directory;
  const std::string path = directory / "s";
  loop::Loop loop;
  { const auto listener = open_at(loop, {.path = path, .group = {}}); }
  CHECK_FALSE(exists(path));
  CHECK((status_of(path + ".lock").st_mode & 07777) == 0600);
  const auto again = open_at(loop, {.path = path, .group = {}});
  CHECK(exists(path));
}

TEST_CASE("unix listener: somebody else's socket at the path by now is not removed") {
  const TemporaryDirectory directory;
  const std::string path = directory / "s";
  loop::Loop loop;
  auto listener = open_at(loop, {.path = path, .group = {}});
  std::filesystem::rename(path, directory / "kept");
  const auto other = RawSocket::listen_at(path);
  listener.reset();
  CHECK(exists(path));
  CHECK(RawSocket::connect_to(path).is_open());
}

TEST_CASE("unix listener: of two agents on one path only one gets the lock") {
  const TemporaryDirectory directory;
  const std::string path = directory / "s";
  loop::Loop loop;
  auto first = open_at(loop, {.path = path, .group = {}});
  const std::string taken = path + ": another allowd is running on this socket (it holds the lock file)";
  CHECK(why_refused(loop, {.path = path, .group = {}}) == taken);
  CHECK(RawSocket::connect_to(path).is_open());
  // Also when the socket itself has been removed meanwhile.
  std::filesystem::remove(path);
  CHECK(why_refused(loop, {.path = path, .group = {}}) == taken);
  first.reset();
  const auto second = open_at(loop, {.path = path, .group = {}});
  CHECK(exists(path));
}

TEST_CASE("unix listener: a link in place of the lock file is not followed") {
  const TemporaryDirectory directory;
  const std::string path = directory / "s";
  std::filesystem::create_symlink(directory / "victim", path + ".lock");
  loop::Loop loop;
  CHECK(why_refused(loop, {.path = path, .group = {}}).starts_with(path + ".lock: cannot open"));
  CHECK_FALSE(exists(directory / "victim"));
  CHECK_FALSE(exists(path));
}

}  // namespace
}  // namespace allowd::io
