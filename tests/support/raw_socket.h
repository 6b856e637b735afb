// SPDX-License-Identifier: MIT
//
// A plain socket as the other side of what is tested: never waits, knows nothing of the loop.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace allowd::testing {

class RawSocket {
 public:
  explicit RawSocket(int fd = -1) : fd_(fd) {
    std::signal(SIGPIPE, SIG_IGN);  // as main() does
    if (fd_ >= 0) ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_NONBLOCK);
  }
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawSocket& operator=(RawSocket&& other) noexcept {
    close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~RawSocket() { close(); }

  // Binds and listens at a path.
  static RawSocket listen_at(const std::string& path) {
    RawSocket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(path);
    REQUIRE(::bind(socket.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(socket.fd_, 16) == 0);
    return socket;
  }
  // Not open when nobody listens.
  static RawSocket connect_to(const std::string& path) {
    RawSocket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(path);
    if (::connect(socket.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      socket.close();
    return socket;
  }
  // Listens on a free port of 127.0.0.1, which `port` tells.
  static RawSocket listen_on_loopback(std::uint16_t& port) {
    RawSocket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(socket.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(socket.fd_, 16) == 0);
    socklen_t size = sizeof address;
    REQUIRE(::getsockname(socket.fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
    return socket;
  }

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  // The next connection that waits; not open when none does.
  [[nodiscard]] RawSocket accept() const { return RawSocket(::accept(fd_, nullptr, nullptr)); }

  // Sends what the kernel takes and says how much that was; -1 on an error that is not "full".
  long send(std::string_view bytes) const {
    const long sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : sent;
  }
  // Appends what has arrived. False once the other side has closed.
  bool receive(std::string& bytes) {
    char chunk[65'536];
    while (true) {
      const long count = ::recv(fd_, chunk, sizeof chunk, 0);
      if (count > 0) {
        bytes.append(chunk, static_cast<std::size_t>(count));
        continue;
      }
      return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
  }
  void end_sending() const { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  static sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof address.sun_path);
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
  }

  int fd_;
};

}  // namespace allowd::testing
