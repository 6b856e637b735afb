// SPDX-License-Identifier: MIT
//
// One non-blocking connection to a Unix socket, with a deadline on everything.
//
// Ownership  Owns the descriptor.
// Errors     A call that fails leaves the connection closed, but for a read that timed out: late bytes stay
//            with their stream, and whoever matches replies by id may go on.
// Fork       A child must not use its parent's connection; see Client.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/problem.h"

namespace allowd::client {

class Connection {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Failure = std::optional<Problem>;

  Connection() = default;
  ~Connection() { close(); }
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;

  [[nodiscard]] Failure connect(const std::string& path, TimePoint deadline);
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] int fd() const { return fd_; }
  void close();

  // Sends all of `bytes`. `sent`: how many had left when it failed.
  [[nodiscard]] Failure write(std::string_view bytes, TimePoint deadline, std::size_t& sent);
  // Waits for more bytes and adds them to `received`.
  [[nodiscard]] Failure read_more(TimePoint deadline);
  // Takes what is there now, without waiting: false when nothing was.
  [[nodiscard]] bool read_available(Failure& failure);

  [[nodiscard]] std::span<const std::byte> received() const;
  void drop(std::size_t count);

 private:
  [[nodiscard]] Failure wait_for(short events, TimePoint deadline) const;

  int fd_ = -1;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what was not dropped
};

}  // namespace allowd::client
