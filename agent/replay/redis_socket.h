// SPDX-License-Identifier: MIT
//
// A blocking connection to Redis, plain or over TLS: one command, one reply. hiredis connects; its own
// reading knows nothing of TLS in the versions that we build with.
#pragma once

#include <memory>
#include <string>

#include "agent/store/redis/codec/resp.h"
#include "agent/store/redis/link/endpoint.h"
#include "agent/tls/tls_options.h"
#include "agent/tls/tls_session.h"

namespace allowd::replay {

class RedisSocket {
 public:
  // `tls` is for an endpoint that wants it. Waits five seconds at most.
  static Result<std::unique_ptr<RedisSocket>> connect(const store::RedisEndpoint& endpoint,
                                                      const tls::TlsOptions& tls);
  ~RedisSocket();
  RedisSocket(const RedisSocket&) = delete;
  RedisSocket& operator=(const RedisSocket&) = delete;

  // An error reply is a reply. After an Error the connection is of no more use.
  [[nodiscard]] Result<store::Reply> call(std::string_view command);

 private:
  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
  };

  explicit RedisSocket(redisContext* context) : context_(context) {}
  [[nodiscard]] Failure start_tls(const store::RedisEndpoint& endpoint, const tls::TlsOptions& options);
  [[nodiscard]] Failure send(std::string_view plain);
  // Waits for bytes and hands them on.
  [[nodiscard]] Failure receive();
  // All of `encrypted_` and `plain`, which is empty over TLS.
  [[nodiscard]] Failure write(std::string_view plain);

  std::unique_ptr<redisContext, Free> context_;
  std::unique_ptr<tls::TlsSession> tls_;  // null: plain
  store::ByteBuffer encrypted_;           // on its way out
  store::ByteBuffer decrypted_;
  store::ReplyReader reader_;
};

}  // namespace allowd::replay
