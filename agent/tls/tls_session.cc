// SPDX-License-Identifier: MIT
#include "agent/tls/tls_session.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <new>
#include <utility>

#include "agent/tls/tls_error.h"
#include "agent/tls/wire_bio.h"

namespace allowd::tls {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// A handshake with a long chain of certificates of ours takes some ten KiB. Afterwards only a server that
// sends nothing but requests for new keys gets so far.
constexpr std::size_t kMaxUnpaidBytes = 128 * 1024;

bool is_address(const std::string& name) {
  unsigned char bytes[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, name.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, name.c_str(), bytes) == 1;
}

// As certificates have it: without a root's dot and an interface ("fe80::1%eth0").
std::string as_certified(std::string name) {
  if (name.find(':') != std::string::npos) return name.substr(0, name.find('%'));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

}  // namespace

void TlsSession::Free::operator()(ssl_st* session) const { SSL_free(session); }

TlsSession::TlsSession(const TlsContext& context, std::string server_name)
    : server_name_(as_certified(std::move(server_name))),
      wire_(std::make_unique<Wire>()),
      ssl_(SSL_new(context.raw())) {
  BIO* bio = ssl_ ? make_wire_bio(*wire_) : nullptr;
  if (bio == nullptr) throw std::bad_alloc();
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_connect_state(ssl_.get());
}

TlsSession::~TlsSession() = default;

Failure TlsSession::expect_server() {
  ERR_clear_error();
  bool is_set = false;
  if (is_address(server_name_)) {
    is_set = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), server_name_.c_str()) == 1;
  } else if (!server_name_.empty() && server_name_.find('\0') == std::string::npos) {
    SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    is_set = SSL_set1_host(ssl_.get(), server_name_.c_str()) == 1 &&
             SSL_set_tlsext_host_name(ssl_.get(), server_name_.c_str()) == 1;
  }
  ERR_clear_error();
  if (is_set) return {};
  has_failed_ = true;
  return Error{Error::Code::bad_request, "\"" + server_name_ + "\" is no name of a server"};
}

Failure TlsSession::start(ByteBuffer& network) {
  if (auto problem = expect_server()) return problem;
  wire_->out = &network;
  auto problem = shake_hands();
  *wire_ = {};
  return problem;
}

Failure TlsSession::receive(std::span<const std::byte> bytes, ByteBuffer& plain, ByteBuffer& network) {
  if (has_failed_ || has_ended_) return {};
  const std::size_t plain_before = plain.size(), network_before = network.size();
  *wire_ = {bytes, &network};
  Failure problem;
  if (!is_ready_) problem = shake_hands();
  if (is_ready_ && !problem) problem = read_all(plain);
  *wire_ = {};
  unpaid_bytes_ += network.size() - network_before;
  unpaid_bytes_ -= std::min(unpaid_bytes_, plain.size() - plain_before);
  if (!problem && unpaid_bytes_ > kMaxUnpaidBytes) {
    has_failed_ = true;
    problem = Error{Error::Code::system, "the server keeps asking for new keys"};
  }
  return problem;
}

Failure TlsSession::shake_hands() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    is_ready_ = true;
    return {};
  }
  if (SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ) return {};
  return explain();
}

Failure TlsSession::read_all(ByteBuffer& plain) {
  while (true) {
    std::size_t count = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(ssl_.get(), plain.reserve(kRecordBytes), kRecordBytes, &count);
    if (result == 1) {
      plain.commit(count);
      continue;
    }
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ: return {};
      case SSL_ERROR_ZERO_RETURN: has_ended_ = true; return {};
      default: return explain();
    }
  }
}

Failure TlsSession::send(std::string_view plain, ByteBuffer& network) {
  if (plain.empty() || has_failed_) return {};
  wire_->out = &network;
  std::size_t count = 0;
  ERR_clear_error();
  // Our end of the wire takes all that it is given, so all is written or nothing will be any more.
  const bool is_written = SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &count) == 1;
  *wire_ = {};
  if (is_written) return {};
  return explain();
}

void TlsSession::close(ByteBuffer& network) {
  if (!is_ready_ || has_failed_) return;  // SSL_shutdown is not for those
  wire_->out = &network;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
  *wire_ = {};
}

Error TlsSession::explain() {
  has_failed_ = true;
  const unsigned long code = ERR_peek_error();
  const long verdict = SSL_get_verify_result(ssl_.get());
  const bool is_verdict =
      ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED;
  std::string text = take_reason();
  if (is_verdict) {
    text.append(": ").append(X509_verify_cert_error_string(verdict));
    if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH)
      text.append(", expected ").append(server_name_);
  }
  return {Error::Code::retry_later, std::move(text)};
}

}  // namespace allowd::tls
