// SPDX-License-Identifier: MIT
//
// One TLS connection as a client, without its socket: bytes from the network in, plaintext out, and the
// reverse. What is to be sent is appended to `network`, in the order in which it must leave.
//
// Ownership  A session of which a call has failed is over; what is in `network` then (an alert) may still be
//            sent. It keeps what it needs of its context.
// Errors     In plain words, without "TLS" in front: "certificate verify failed: certificate has expired".
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "agent/result/result.h"
#include "agent/tls/tls_context.h"
#include "protocol/byte_buffer.h"

struct ssl_st;  // OpenSSL's SSL

namespace allowd::tls {

struct Wire;

class TlsSession {
 public:
  using ByteBuffer = protocol::ByteBuffer;

  // The server's certificate must be made out to `server_name`, a DNS name, which is also asked for (SNI), or
  // an IP address, which is not.
  TlsSession(const TlsContext& context, std::string server_name);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Begins the handshake.
  [[nodiscard]] Failure start(ByteBuffer& network);
  // Takes all of `bytes`: the handshake goes on, and what they hold of plaintext is appended to `plain`, also
  // when the call fails. Fails too when the server wants more answers from us than what it says is worth.
  [[nodiscard]] Failure receive(std::span<const std::byte> bytes, ByteBuffer& plain, ByteBuffer& network);
  // Expects is_ready().
  [[nodiscard]] Failure send(std::string_view plain, ByteBuffer& network);
  // Says goodbye (close_notify), if that makes sense yet. The answer need not be waited for.
  void close(ByteBuffer& network);

  // The handshake is done, and the server is who it should be.
  [[nodiscard]] bool is_ready() const { return is_ready_; }
  // The server has said that it will send nothing more.
  [[nodiscard]] bool has_ended() const { return has_ended_; }

 private:
  struct Free {
    void operator()(ssl_st* session) const;
  };

  [[nodiscard]] Failure expect_server();
  [[nodiscard]] Failure shake_hands();
  [[nodiscard]] Failure read_all(ByteBuffer& plain);
  // Why the last call of OpenSSL has failed.
  [[nodiscard]] Error explain();

  std::string server_name_;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<ssl_st, Free> ssl_;
  std::size_t unpaid_bytes_ = 0;  // that we had to answer, less the plaintext that came with it
  bool is_ready_ = false;
  bool has_ended_ = false;
  bool has_failed_ = false;
};

}  // namespace allowd::tls
