// SPDX-License-Identifier: MIT
//
// One command to one server on a connection of its own: connects, signs in, asks and hangs up. For what is
// asked seldom, of whichever server is there, and must not stand in the way of decisions.
//
// Ownership  May be destroyed at any time, though not from inside its callback.
// Errors     What the server refuses is an Error with its words; so is a patience that ends.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/loop/address_book.h"
#include "agent/loop/timer.h"
#include "agent/store/redis/link/connection.h"
#include "agent/store/redis/link/password_file.h"

namespace allowd::store {

class Query {
 public:
  using Done = std::function<void(Result<Reply>)>;

  // `tls` is not null if the endpoint wants it.
  Query(loop::Loop& loop, const RedisEndpoint& endpoint, std::shared_ptr<TlsMaterial> tls,
        std::initializer_list<std::string_view> command, const ReplyReader::Caps& caps = {});

  // Calls `done` once; to be called once. The patience is with the server, over TLS with some more for the
  // handshake: it begins when what is needed of files has been read.
  void start(limiter::Micros patience, Done done);

 private:
  void open();
  void send();
  void finish(Result<Reply> result);

  RedisEndpoint endpoint_;
  std::vector<std::string> command_;
  Done done_;
  limiter::Micros for_server_{0};
  loop::Timer patience_;
  loop::AddressBook addresses_;
  PasswordFile password_file_;
  Connection connection_;
};

}  // namespace allowd::store
