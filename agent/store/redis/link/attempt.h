// SPDX-License-Identifier: MIT
//
// One attempt at a connection that is ready for questions: finds the server, reads the password and what TLS
// rests on, connects, signs in, loads the script and measures the server's clock.
//
// Time       From connecting on, a second in all, over TLS two. Reading files is not the server's fault and
//            has its own bound, and so has the source.
// Ownership  May be destroyed at any time but from inside `on_ready` and `on_failed`; nobody is called then.
// Errors     Calls either `on_ready` or `on_failed`, once, maybe from inside `start`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/loop/timer.h"
#include "agent/store/redis/link/clock_probe.h"
#include "agent/store/redis/link/connection.h"
#include "agent/store/redis/link/endpoint_source.h"
#include "agent/store/redis/link/password_file.h"
#include "agent/store/redis/link/server_identity.h"
#include "agent/store/redis/link/sign_in.h"

namespace allowd::store {

class Attempt {
 public:
  static constexpr limiter::Micros kTimeout = std::chrono::seconds(1);  // without TLS

  // What attempts use one after the other; all of it outlives them.
  struct Means {
    loop::Loop& loop;
    EndpointSource& source;
    loop::AddressBook& addresses;
    PasswordFile& password_file;
    std::shared_ptr<TlsMaterial> tls;  // not null if the source may find an endpoint that wants it
    std::string_view script;
    bool script_tells_time = false;  // then it has to be able to
  };
  struct Ready {
    std::unique_ptr<Connection> connection;
    std::string script_sha;
    ServerIdentity server;
    std::vector<ClockReading> clock;
  };
  using OnReady = std::function<void(Ready)>;
  using OnFailed = std::function<void(const Refusal&)>;

  Attempt(const Means& means, OnReady on_ready, OnFailed on_failed);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  void start();
  // Whether one of them was called.
  [[nodiscard]] bool is_over() const { return is_over_; }
  // The server that was found, with the password that was read; empty while none was.
  [[nodiscard]] const RedisEndpoint& endpoint() const { return endpoint_; }

 private:
  void find_password(const RedisEndpoint& endpoint);
  void open();
  void prepare();
  void try_script_time();
  void measure_clock();
  void fail(Refusal refusal);
  // From now on; replaces what was allowed before.
  void allow(limiter::Micros patience, std::string_view otherwise);
  // Sends one command; an error reply or a lost connection ends the attempt.
  void ask(std::initializer_list<std::string_view> command, std::string_view doing,
           std::function<void(const Reply&)> on_reply);

  Means means_;
  OnReady on_ready_;
  OnFailed on_failed_;
  RedisEndpoint endpoint_;
  Ready ready_;  // as far as it has come
  bool is_over_ = false;
  loop::Timer patience_;
};

}  // namespace allowd::store
