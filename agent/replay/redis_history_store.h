// SPDX-License-Identifier: MIT
//
// The daemon's own script on a real Redis, one question at a time, at a time of the caller's: blocking, for
// `replay`.
//
// Ownership  Keys are written under a prefix of its own and deleted by the destructor.
#pragma once

#include <memory>
#include <string>

#include "agent/replay/redis_socket.h"
#include "agent/store/redis/codec/script_call.h"

namespace allowd::replay {

class RedisHistoryStore {
 public:
  // `tls` is for an endpoint that wants it.
  static Result<std::unique_ptr<RedisHistoryStore>> connect(const store::RedisEndpoint& endpoint,
                                                            const tls::TlsOptions& tls, std::string prefix);
  ~RedisHistoryStore();
  RedisHistoryStore(const RedisHistoryStore&) = delete;
  RedisHistoryStore& operator=(const RedisHistoryStore&) = delete;

  [[nodiscard]] Result<limiter::Decision> decide(const store::Question& question, limiter::TimePoint now);

 private:
  RedisHistoryStore(std::unique_ptr<RedisSocket> socket, std::string prefix)
      : socket_(std::move(socket)), prefix_(std::move(prefix)) {}
  [[nodiscard]] Result<store::Reply> call(const store::ByteBuffer& command);
  [[nodiscard]] Result<store::Reply> call(std::initializer_list<std::string_view> command);

  std::unique_ptr<RedisSocket> socket_;
  std::string prefix_;
  std::string script_sha_;
};

}  // namespace allowd::replay
