// SPDX-License-Identifier: MIT
//
// Turns a host name into addresses without blocking the loop. Numeric addresses are not looked up.
//
// libuv looks names up on a pool of threads; a look-up that hangs cannot be taken back, only forgotten. One
// is under way at a time: asking again while one hangs waits for that one.
#pragma once

#include <netinet/in.h>

#include <functional>
#include <string>
#include <vector>

#include "agent/loop/loop.h"

namespace allowd::loop {

class Resolver {
 public:
  using Addresses = std::vector<sockaddr_storage>;
  // `status` is 0 or a libuv error.
  using Done = std::function<void(int status, Addresses addresses)>;

  explicit Resolver(Loop& loop) : loop_(loop) {}
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Calls `done` once, maybe before returning, unless `forget` or another resolve comes first.
  void resolve(const std::string& host, std::uint16_t port, Done done);
  // The answer is not wanted any more.
  void forget();

 private:
  struct Lookup;

  Loop& loop_;
  Done done_;
  Lookup* lookup_ = nullptr;  // under way; frees itself when libuv has finished
};

}  // namespace allowd::loop
