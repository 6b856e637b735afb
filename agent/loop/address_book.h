// SPDX-License-Identifier: MIT
//
// Finds the addresses of hosts by name, within a time of its own, whatever the resolver does: a look-up that
// fails or takes too long is answered with the addresses that the last good one brought.
//
// A look-up that hangs cannot be taken back. One per host and port is under way at a time, however often it
// is asked for, and what it brings late is remembered.
//
// Units      A look-up may take `patience`; one that has hung for longer than that already is not waited for
//            again where older addresses are known.
// Memory     At most kMaxHosts hosts are remembered.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/loop/resolver.h"
#include "agent/loop/timer.h"

namespace allowd::loop {

class AddressBook {
 public:
  static constexpr std::size_t kMaxHosts = 16;
  static constexpr Micros kPatience = std::chrono::milliseconds(500);

  struct Found {
    int status = 0;              // 0, or a libuv error: then there are no addresses
    bool is_remembered = false;  // from an earlier look-up, since this one failed or hangs
    int look_up_status = 0;      // of the look-up; UV_ETIMEDOUT if it has not answered
    Resolver::Addresses addresses;
  };
  using Done = std::function<void(Found)>;

  explicit AddressBook(Loop& loop, Micros patience = kPatience)
      : loop_(loop), patience_(patience), patience_timer_(loop) {}
  AddressBook(const AddressBook&) = delete;
  AddressBook& operator=(const AddressBook&) = delete;

  // Calls `done` once, maybe before returning, unless `forget` or another find comes first. Of several
  // addresses the list begins with another one each time.
  void find(const std::string& host, std::uint16_t port, Done done);
  // The answer is not wanted any more.
  void forget();

  // Look-ups that failed or took too long.
  [[nodiscard]] std::uint64_t failures() const { return failures_; }

 private:
  struct Host {
    Host(Loop& loop, std::string given_name, std::uint16_t given_port)
        : name(std::move(given_name)), port(given_port), resolver(loop) {}

    std::string name;
    std::uint16_t port;
    Resolver resolver;
    bool is_looked_up = false;   // at present
    bool has_timed_out = false;  // somebody lost patience with that look-up
    SteadyTime looked_up_at{};
    Resolver::Addresses known;  // what the last good look-up brought, the next to try in front
  };

  [[nodiscard]] Host& host_of(const std::string& name, std::uint16_t port);
  void look_up(Host& host);
  void on_looked_up(Host& host, int status, Resolver::Addresses addresses);
  void answer(Host& host, int look_up_status);

  Loop& loop_;
  Micros patience_;
  std::vector<std::unique_ptr<Host>> hosts_;  // the one asked about last at the end
  Host* asked_ = nullptr;                     // whom done_ waits for
  Done done_;
  Timer patience_timer_;
  std::uint64_t failures_ = 0;
};

}  // namespace allowd::loop
