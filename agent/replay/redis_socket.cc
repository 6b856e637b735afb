// SPDX-License-Identifier: MIT
#include "agent/replay/redis_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>
#include <system_error>
#include <utility>

namespace allowd::replay {
namespace {

constexpr timeval kTimeout{5, 0};

Error socket_error(std::string what) { return {Error::Code::system, std::move(what)}; }

Error socket_error_of_errno() {
  // So a blocking socket says that its time is over.
  if (errno == EAGAIN || errno == EWOULDBLOCK) return socket_error("no answer within five seconds");
  return socket_error(std::generic_category().message(errno));
}

}  // namespace

Result<std::unique_ptr<RedisSocket>> RedisSocket::connect(const store::RedisEndpoint& endpoint,
                                                          const tls::TlsOptions& tls) {
  redisContext* context = endpoint.unix_path.empty()
                              ? redisConnectWithTimeout(endpoint.host.c_str(), endpoint.port, kTimeout)
                              : redisConnectUnixWithTimeout(endpoint.unix_path.c_str(), kTimeout);
  if (context == nullptr) return socket_error("out of memory");
  std::unique_ptr<RedisSocket> socket(new RedisSocket(context));
  if (context->err != 0) return socket_error(context->errstr);
  redisSetTimeout(context, kTimeout);
  if (!endpoint.is_tls) return socket;
  if (auto problem = socket->start_tls(endpoint, tls)) return std::move(*problem).within("TLS");
  return socket;
}

RedisSocket::~RedisSocket() {
  if (!tls_) return;
  tls_->close(encrypted_);
  static_cast<void>(write({}));  // a courtesy
}

Failure RedisSocket::start_tls(const store::RedisEndpoint& endpoint, const tls::TlsOptions& options) {
  auto context = tls::TlsContext::make(options);
  if (!context) return std::move(context.error());
  tls_ = std::make_unique<tls::TlsSession>(*context,
                                           options.server_name.empty() ? endpoint.host : options.server_name);
  auto problem = tls_->start(encrypted_);
  if (!problem) problem = write({});
  while (!problem && !tls_->is_ready()) problem = receive();
  return problem;
}

Failure RedisSocket::write(std::string_view plain) {
  for (std::string_view rest = tls_ ? encrypted_.view() : plain; !rest.empty();) {
    const ssize_t sent = ::send(context_->fd, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) {
      encrypted_.clear();
      return socket_error_of_errno();
    }
    if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
  }
  encrypted_.clear();
  return {};
}

Failure RedisSocket::send(std::string_view plain) {
  if (!tls_) return write(plain);
  if (auto problem = tls_->send(plain, encrypted_)) return problem;
  return write({});
}

Failure RedisSocket::receive() {
  std::array<char, 16 * 1024> bytes;
  ssize_t count = 0;
  do count = ::recv(context_->fd, bytes.data(), bytes.size(), 0);
  while (count < 0 && errno == EINTR);
  if (count < 0) return socket_error_of_errno();
  if (count == 0) return socket_error("the server has closed the connection");
  const std::string_view arrived(bytes.data(), static_cast<std::size_t>(count));
  if (!tls_) return reader_.feed(arrived);
  auto problem = tls_->receive(std::as_bytes(std::span(arrived)), decrypted_, encrypted_);
  auto unsent = write({});  // an alert too
  if (!problem) problem = std::move(unsent);
  if (!problem && !decrypted_.empty()) problem = reader_.feed(decrypted_.view());
  decrypted_.clear();
  if (!problem && tls_->has_ended()) problem = socket_error("the server has closed the connection");
  return problem;
}

Result<store::Reply> RedisSocket::call(std::string_view command) {
  if (auto problem = send(command)) return std::move(*problem);
  while (true) {
    auto reply = reader_.read();
    if (!reply || *reply != nullptr) return reply;
    if (auto problem = receive()) return std::move(*problem);
  }
}

}  // namespace allowd::replay
