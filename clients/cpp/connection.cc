// SPDX-License-Identifier: MIT
#include "clients/cpp/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace allowd::client {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;

Problem from_errno(std::string_view doing, int error) {
  return {Problem::Kind::no_agent, "", std::string(doing) + ": " + std::strerror(error)};
}

Problem timed_out(std::string_view doing) {
  return {Problem::Kind::timed_out, "", std::string(doing) + ": timed out"};
}

}  // namespace

Connection::Connection(Connection&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      buffer_(std::move(other.buffer_)),
      begin_(std::exchange(other.begin_, 0)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  close();
  fd_ = std::exchange(other.fd_, -1);
  buffer_ = std::move(other.buffer_);
  begin_ = std::exchange(other.begin_, 0);
  return *this;
}

void Connection::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  buffer_.clear();
  begin_ = 0;
}

Connection::Failure Connection::connect(const std::string& path, TimePoint deadline) {
  close();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return from_errno(path, ENAMETOOLONG);
  std::memcpy(address.sun_path, path.data(), path.size());
  fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return from_errno("socket", errno);
  while (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EAGAIN) {
      close();
      return from_errno(path, error);
    }
    // The backlog is full, and nothing tells when it is not any more.
    if (std::chrono::steady_clock::now() >= deadline) {
      close();
      return timed_out("connect");
    }
    ::poll(nullptr, 0, 1);
  }
  return {};
}

Connection::Failure Connection::wait_for(short events, TimePoint deadline) const {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return timed_out((events & POLLOUT) != 0 ? "write" : "read");
    pollfd watched{fd_, events, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(left.count()));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return from_errno("poll", errno);
  }
}

Connection::Failure Connection::write(std::string_view bytes, TimePoint deadline, std::size_t& sent) {
  sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
      continue;
    }
    if (errno == EINTR) continue;
    Failure failure;
    if (errno == EAGAIN) {
      // An agent that waits for its replies to be read does not read: take them while there is more to write.
      static_cast<void>(read_available(failure));
      if (!failure) failure = wait_for(POLLIN | POLLOUT, deadline);
    } else {
      failure = from_errno("write", errno);
    }
    if (!failure) continue;
    close();  // half a request may have left: the stream is of no use any more
    return failure;
  }
  return {};
}

bool Connection::read_available(Failure& failure) {
  if (begin_ > 0) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
  }
  const std::size_t old_size = buffer_.size();
  buffer_.resize(old_size + kReadBytes);
  const ssize_t count = ::recv(fd_, buffer_.data() + old_size, kReadBytes, 0);
  const int error = errno;
  buffer_.resize(old_size + static_cast<std::size_t>(count > 0 ? count : 0));
  if (count > 0) return true;
  if (count < 0 && (error == EAGAIN || error == EINTR)) return false;
  failure = count == 0 ? Problem{Problem::Kind::no_agent, "", "the agent closed the connection"}
                       : from_errno("read", error);
  close();
  return false;
}

Connection::Failure Connection::read_more(TimePoint deadline) {
  while (true) {
    Failure failure;
    if (read_available(failure) || failure) return failure;
    if ((failure = wait_for(POLLIN, deadline))) {
      // Not having been scheduled in time is no reason to throw away what has arrived.
      Failure broken;
      return read_available(broken) ? Failure{} : broken ? broken : failure;
    }
  }
}

std::span<const std::byte> Connection::received() const {
  return std::as_bytes(std::span(buffer_).subspan(begin_));
}

void Connection::drop(std::size_t count) {
  begin_ += count;
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
  }
}

}  // namespace allowd::client
