// SPDX-License-Identifier: MIT
#include "agent/tls/tls_error.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <string_view>
#include <system_error>

namespace allowd::tls {
namespace {

// Reasons above this are alerts that the other side sent.
constexpr int kAlerts = SSL_AD_REASON_OFFSET;

}  // namespace

std::string reason_of(unsigned long code) {
  if (code == 0) return "the connection broke off";
  if (ERR_SYSTEM_ERROR(code)) return std::generic_category().message(ERR_GET_REASON(code));
  const char* known = ERR_reason_error_string(code);
  const std::string text = known != nullptr ? known : "OpenSSL error " + std::to_string(code);
  if (ERR_GET_LIB(code) != ERR_LIB_SSL) return text;
  const int reason = ERR_GET_REASON(code);
  if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST)
    return "what the server says is not TLS; a port without TLS needs redis://";
  if (reason < kAlerts) return text;
  constexpr std::string_view kWord = "alert ";  // "tlsv13 alert certificate required"
  const std::size_t word = text.find(kWord);
  return "the server refuses: " + text.substr(word == std::string::npos ? 0 : word + kWord.size());
}

std::string take_reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  return reason_of(code);
}

}  // namespace allowd::tls
