// SPDX-License-Identifier: MIT
//
// Finds the master of a group of servers by asking its Sentinels, one after the other, as the Redis
// documentation's "Guidelines for Redis clients with support for Redis Sentinel" has it: each has 300 ms to
// answer, and a second more for a handshake; the one that did is asked first the next time, on the same
// connection. What they say may be out of date: the link makes sure, by ROLE, that it has a master, and asks
// anew if not.
//
// Ownership  May be destroyed at any time, though not from inside the callback of a `find`.
#pragma once

#include <memory>
#include <string>

#include "agent/loop/address_book.h"
#include "agent/loop/timer.h"
#include "agent/store/redis/link/connection.h"
#include "agent/store/redis/link/endpoint_source.h"
#include "agent/store/redis/link/password_file.h"

namespace allowd::store {

class SentinelSource final : public EndpointSource {
 public:
  // The master that is found is signed in to as `server` says, whose address means nothing. Expects at least
  // one sentinel.
  // `tls` is not null if one wants it.
  SentinelSource(loop::Loop& loop, SentinelGroup group, RedisEndpoint server,
                 std::shared_ptr<TlsMaterial> tls);
  ~SentinelSource() override;
  SentinelSource(const SentinelSource&) = delete;
  SentinelSource& operator=(const SentinelSource&) = delete;

  void find(Done done) override;
  void forget() override;
  [[nodiscard]] bool must_be_master() const override { return true; }
  // "sentinel://main"
  [[nodiscard]] std::string display() const override { return "sentinel://" + group_.master; }

 private:
  void ask_next();
  void open(const RedisEndpoint& sentinel);
  // How long this one may take from now on.
  void allow(limiter::Micros patience);
  void ask_for_master();
  void on_master(const Reply& reply);
  // This one cannot say; on to the next.
  void move_on(const Error& why);
  void finish(Result<RedisEndpoint> found);

  loop::Loop& loop_;
  SentinelGroup group_;
  RedisEndpoint server_;
  std::shared_ptr<TlsMaterial> tls_;
  loop::AddressBook addresses_;
  PasswordFile password_file_;
  Done done_;             // null: nobody asks
  std::size_t next_ = 0;  // of the sentinels, whom to ask next
  std::size_t asked_ = 0;
  std::uint64_t generation_ = 0;            // of what is under way; what comes of an older one is ignored
  Error why_not_;                           // what the last one that was asked answered
  std::unique_ptr<Connection> connection_;  // to sentinels[next_]
  bool is_signed_in_ = false;               // and so can be asked at once
  loop::Timer step_;
};

}  // namespace allowd::store
