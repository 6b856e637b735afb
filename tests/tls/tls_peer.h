// SPDX-License-Identifier: MIT
//
// The server's side of TLS in memory, for tests: OpenSSL's own BIOs, so that ours are held against others.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>

#include "tests/tls/certificates.h"

namespace allowd::testing {

class TlsPeer {
 public:
  struct Options {
    const Certificate* client_authority = nullptr;  // asks for a certificate of it
    int max_version = TLS1_3_VERSION;
    int min_version = TLS1_VERSION;
  };

  TlsPeer(const Certificate& certificate, const Options& options);

  // Takes what the client has sent; the handshake goes on, plaintext is kept in `received`.
  void take(std::string_view bytes);
  // What is to go to the client.
  [[nodiscard]] std::string drain();
  void send(std::string_view plain);
  void close() { SSL_shutdown(ssl_.get()); }

  [[nodiscard]] SSL* raw() { return ssl_.get(); }
  [[nodiscard]] bool is_ready() { return SSL_is_init_finished(ssl_.get()) == 1; }
  // What the client asked for; empty: nothing.
  [[nodiscard]] std::string asked_for() const { return asked_for_; }
  std::string received;

 private:
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  std::string asked_for_;
};

}  // namespace allowd::testing
