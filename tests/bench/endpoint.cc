// SPDX-License-Identifier: MIT

#include "endpoint.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace allowd::bench {
namespace {

constexpr std::chrono::milliseconds kPatience{2000};
constexpr std::size_t kReadBytes = 64 * 1024;

void wait_for(int fd, short events, const char* what) {
  pollfd waiting{.fd = fd, .events = events, .revents = 0};
  if (poll(&waiting, 1, static_cast<int>(kPatience.count())) == 0) {
    throw PeerError(std::string("the peer does not answer: ") + what + " took more than 2 s");
  }
}

bool should_wait() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

PeerError peer_error_from_errno(const std::string& what) {
  return PeerError(what + ": " + std::strerror(errno));
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

Endpoint Endpoint::unix_socket(std::string path) {
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    throw PeerError("socket path of more than 107 bytes: " + path);
  }
  Endpoint endpoint;
  endpoint.name_ = std::move(path);
  return endpoint;
}

Endpoint Endpoint::parse(const std::string& text) {
  if (text.starts_with('/') || text.starts_with('.')) {
    return unix_socket(text);
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    throw PeerError("neither host:port nor a path: " + text);
  }
  Endpoint endpoint;
  endpoint.name_ = text;
  endpoint.host_ = text.substr(0, colon);
  endpoint.port_ = text.substr(colon + 1);
  return endpoint;
}

UniqueFd Endpoint::connect() const {
  UniqueFd fd = host_.empty() ? connect_unix() : connect_tcp();
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0 || fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
    throw peer_error_from_errno(name_);
  }
  return fd;
}

UniqueFd Endpoint::connect_unix() const {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name_.data(), name_.size());
  if (fd.get() < 0 || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw peer_error_from_errno("cannot connect to " + name_);
  }
  return fd;
}

UniqueFd Endpoint::connect_tcp() const {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host_.c_str(), port_.c_str(), &hints, &found); status != 0) {
    throw PeerError("cannot find " + name_ + ": " + gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    UniqueFd fd(socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol));
    if (fd.get() >= 0 && ::connect(fd.get(), address->ai_addr, address->ai_addrlen) == 0) {
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return fd;
    }
  }
  throw peer_error_from_errno("cannot connect to " + name_);
}

void send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (should_wait()) {
      wait_for(fd, POLLOUT, "a write");
    } else {
      throw peer_error_from_errno("cannot write to the peer");
    }
  }
}

std::vector<std::byte> receive_some(int fd) {
  std::vector<std::byte> bytes(kReadBytes);
  while (true) {
    const ssize_t received = recv(fd, bytes.data(), bytes.size(), 0);
    if (received > 0) {
      bytes.resize(static_cast<std::size_t>(received));
      return bytes;
    }
    if (received == 0) {
      throw PeerError("the peer closed the connection instead of answering");
    }
    if (!should_wait()) {
      throw peer_error_from_errno("cannot read from the peer");
    }
    wait_for(fd, POLLIN, "its reply");
  }
}

}  // namespace allowd::bench
