// SPDX-License-Identifier: MIT
//
// Where the measured server listens, and how to ask it a single question before the load begins.
//
// Errors   Everything that goes wrong with the peer is a PeerError. It ends the program: main prints it and
// exits
//          with 1, as a benchmark that lost its peer has no figures to show.
// Units    Time-outs are std::chrono durations.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "reply_step.h"

namespace allowd::bench {

class PeerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "what: <text of errno>"
[[nodiscard]] PeerError peer_error_from_errno(const std::string& what);

// Owns a file descriptor; closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd();

  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

// A Unix socket's path, or a TCP host and port.
class Endpoint {
 public:
  [[nodiscard]] static Endpoint unix_socket(std::string path);
  // "host:port", or a path if it begins with '/' or '.'. Throws PeerError on anything else.
  [[nodiscard]] static Endpoint parse(const std::string& text);

  // A connected, non-blocking socket, TCP_NODELAY where that means something. Blocks while connecting.
  [[nodiscard]] UniqueFd connect() const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  Endpoint() = default;
  [[nodiscard]] UniqueFd connect_unix() const;
  [[nodiscard]] UniqueFd connect_tcp() const;

  std::string name_;  // as given
  std::string host_;  // empty: `name_` is a path
  std::string port_;
};

// Writes all of `bytes`; reads what there is, at least a byte. Both wait up to two seconds.
void send_all(int fd, std::span<const std::byte> bytes);
[[nodiscard]] std::vector<std::byte> receive_some(int fd);

// Asks one question and returns the whole reply, as `skipper` delimits it.
template <class Skipper>
[[nodiscard]] std::vector<std::byte> ask_once(int fd, std::span<const std::byte> request, Skipper& skipper) {
  send_all(fd, request);
  std::vector<std::byte> reply;
  while (true) {
    const std::vector<std::byte> part = receive_some(fd);
    const ReplyStep step = skipper.advance(part);
    if (step.consumed < part.size()) {
      throw PeerError("the peer sent more than one reply to one request");
    }
    reply.insert(reply.end(), part.begin(), part.end());
    if (step.complete) {
      return reply;
    }
  }
}

}  // namespace allowd::bench
