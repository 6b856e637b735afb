// SPDX-License-Identifier: MIT
#include "tests/tls/tls_peer.h"

#include <doctest/doctest.h>
#include <openssl/err.h>

namespace allowd::testing {

TlsPeer::TlsPeer(const Certificate& certificate, const Options& options)
    : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free), ssl_(nullptr, SSL_free) {
  SSL_CTX* context = context_.get();
  SSL_CTX_set_min_proto_version(context, options.min_version);
  SSL_CTX_set_max_proto_version(context, options.max_version);
  SSL_CTX_set_security_level(context, 0);  // or it would not speak the old versions
  REQUIRE(SSL_CTX_use_certificate(context, certificate.x509.get()) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context, certificate.key.get()) == 1);
  if (options.client_authority != nullptr) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), options.client_authority->x509.get());
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  SSL_CTX_set_tlsext_servername_arg(context, this);
  SSL_CTX_set_tlsext_servername_callback(
      context, +[](SSL* ssl, int*, void* self) {
        const char* name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
        static_cast<TlsPeer*>(self)->asked_for_ = name != nullptr ? name : "";
        return SSL_TLSEXT_ERR_OK;
      });
  ssl_.reset(SSL_new(context));
  SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_accept_state(ssl_.get());
}

void TlsPeer::take(std::string_view bytes) {
  if (!bytes.empty()) BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
  char plain[16 * 1024];
  while (true) {
    ERR_clear_error();
    const int count = SSL_read(ssl_.get(), plain, sizeof plain);  // shakes hands first
    if (count <= 0) break;
    received.append(plain, static_cast<std::size_t>(count));
  }
  ERR_clear_error();
}

std::string TlsPeer::drain() {
  char* bytes = nullptr;
  BIO* bio = SSL_get_wbio(ssl_.get());
  const long size = BIO_get_mem_data(bio, &bytes);
  std::string text(bytes, static_cast<std::size_t>(size));
  BIO_reset(bio);
  return text;
}

void TlsPeer::send(std::string_view plain) {
  REQUIRE(SSL_write(ssl_.get(), plain.data(), static_cast<int>(plain.size())) ==
          static_cast<int>(plain.size()));
}

}  // namespace allowd::testing
