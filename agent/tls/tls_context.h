// SPDX-License-Identifier: MIT
//
// What all TLS connections to one kind of server have in common: TLS 1.2 or later, the trusted certificates,
// our own certificate. Made from files, all of which are in memory afterwards: a handshake reads none.
//
// Not used: renegotiation, compression, and session resumption, with which a certificate that was replaced
// or has expired would go on being good.
//
// Ownership  A shared handle; copy it freely. Sessions keep what they need of it.
// Threads    Make it on any; its sessions may each be on another.
#pragma once

#include <memory>

#include "agent/result/result.h"
#include "agent/tls/tls_options.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace allowd::tls {

class TlsContext {
 public:
  // Reads the files: blocking. Errors name the option, the file and the reason.
  static Result<TlsContext> make(const TlsOptions& options);

  [[nodiscard]] ssl_ctx_st* raw() const { return context_.get(); }

 private:
  explicit TlsContext(std::shared_ptr<ssl_ctx_st> context) : context_(std::move(context)) {}

  std::shared_ptr<ssl_ctx_st> context_;
};

// Gives back what OpenSSL keeps for the thread that calls this, which may use it again. For threads of a
// pool: they end when the process does, too late for OpenSSL to see to it.
void release_thread();

}  // namespace allowd::tls
