// SPDX-License-Identifier: MIT
#include "agent/io/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/printing.h"
#include "tests/support/temporary_directory.h"

namespace allowd::io {
namespace {

// A datagram socket as a service manager has one. A name that begins with @ is an abstract one.
class Manager {
 public:
  explicit Manager(const std::string& name) : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::setenv("NOTIFY_SOCKET", name.c_str(), 1) == 0);
  }
  ~Manager() {
    ::unsetenv("NOTIFY_SOCKET");
    ::close(fd_);
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // The next datagram, or "(none)".
  [[nodiscard]] std::string next() const {
    char text[256];
    const long size = ::recv(fd_, text, sizeof text, 0);
    return size < 0 ? "(none)" : std::string(text, static_cast<std::size_t>(size));
  }

 private:
  int fd_;
};

TEST_CASE("service manager: is told by a datagram to the socket that it named") {
  const testing::TemporaryDirectory directory;
  const Manager manager(directory / "notify");
  notify_service_manager("READY=1");
  notify_service_manager("STOPPING=1");
  CHECK(manager.next() == "READY=1");
  CHECK(manager.next() == "STOPPING=1");
  CHECK(manager.next() == "(none)");
}

TEST_CASE("service manager: may listen on an abstract name") {
  const Manager manager("@allowd-test-" + std::to_string(::getpid()));
  notify_service_manager("READY=1");
  CHECK(manager.next() == "READY=1");
}

TEST_CASE("service manager: one that is not there, or a name that is none, is passed over") {
  ::unsetenv("NOTIFY_SOCKET");
  notify_service_manager("READY=1");
  for (const std::string& name : {std::string(), std::string("relative"), std::string("/no/such/socket"),
                                  "/" + std::string(300, 'x')}) {
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    notify_service_manager("READY=1");
  }
  ::unsetenv("NOTIFY_SOCKET");
  // Whoever comes later is told of what happens then, and of nothing before.
  const testing::TemporaryDirectory directory;
  const Manager manager(directory / "notify");
  CHECK(manager.next() == "(none)");
  notify_service_manager("STOPPING=1");
  CHECK(manager.next() == "STOPPING=1");
}

}  // namespace
}  // namespace allowd::io
