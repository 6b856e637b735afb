// SPDX-License-Identifier: MIT
#include "agent/tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "agent/tls/tls_error.h"
#include "agent/tls/tls_files.h"

namespace allowd::tls {
namespace {

Error cannot(std::string_view option, std::string_view path, std::string_view why) {
  std::string text(option);
  return {Error::Code::bad_request, text.append(": ").append(path).append(": ").append(why)};
}

// What keeps a file from being read, in the system's words rather than in OpenSSL's.
Failure check_readable(std::string_view option, const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return cannot(option, path, std::generic_category().message(errno));
  if (S_ISDIR(found.st_mode)) return cannot(option, path, "is a directory");
  errno = 0;
  if (!std::ifstream(path, std::ios::binary))
    return cannot(option, path, std::generic_category().message(errno));
  return {};
}

// The queue's first reason, where `what` was to be found in a file.
std::string missing_or_reason(std::string_view what) {
  const unsigned long first = ERR_peek_error();
  const int lib = ERR_GET_LIB(first), reason = ERR_GET_REASON(first);
  const bool is_absent = (lib == ERR_LIB_PEM && reason == PEM_R_NO_START_LINE) ||
                         (lib == ERR_LIB_X509 && reason == X509_R_NO_CERTIFICATE_OR_CRL_FOUND) ||
                         reason == ERR_R_UNSUPPORTED;
  std::string text = take_reason();
  return is_absent ? std::string("holds no ").append(what).append(" in PEM form") : text;
}

// OpenSSL would ask the terminal.
int refuse_passphrase(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return 0;
}

Failure load_own_certificate(SSL_CTX* context, const TlsOptions& options) {
  if (auto problem = check_readable("cert_file", options.cert_file)) return problem;
  if (auto problem = check_readable("key_file", options.key_file)) return problem;
  if (SSL_CTX_use_certificate_chain_file(context, options.cert_file.c_str()) != 1)
    return cannot("cert_file", options.cert_file, missing_or_reason("certificate"));
  bool is_encrypted = false;
  SSL_CTX_set_default_passwd_cb(context, refuse_passphrase);
  SSL_CTX_set_default_passwd_cb_userdata(context, &is_encrypted);
  const bool is_loaded =
      SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) == 1;
  SSL_CTX_set_default_passwd_cb_userdata(context, nullptr);
  if (is_encrypted) {
    ERR_clear_error();
    return cannot("key_file", options.key_file, "needs a passphrase; the key must have none");
  }
  if (!is_loaded) {
    const unsigned long first = ERR_peek_error();
    if (ERR_GET_LIB(first) == ERR_LIB_X509 && ERR_GET_REASON(first) == X509_R_KEY_VALUES_MISMATCH) {
      ERR_clear_error();
      return cannot("key_file", options.key_file, "is not the key of the certificate in cert_file");
    }
    return cannot("key_file", options.key_file, missing_or_reason("private key"));
  }
  return {};
}

// OpenSSL would look into the directories during the handshake, on the loop. So all that is there is loaded.
Failure load_system_store(SSL_CTX* context) {
  const SystemStore store = find_system_store();
  bool has_any = SSL_CTX_load_verify_file(context, store.bundle.c_str()) == 1;
  for (const std::string& path : store.files)
    has_any = SSL_CTX_load_verify_file(context, path.c_str()) == 1 || has_any;
  ERR_clear_error();
  if (has_any) return {};
  return Error{Error::Code::bad_request, "ca_file: is missing, and the system trusts nobody (" +
                                             store.bundle + ", " + store.directories + ")"};
}

}  // namespace

Result<TlsContext> TlsContext::make(const TlsOptions& options) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1)
    return Error{Error::Code::system, take_reason()};
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(context.get(), options.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  Failure problem;
  if (!options.ca_file.empty()) {
    problem = check_readable("ca_file", options.ca_file);
    if (!problem && SSL_CTX_load_verify_file(context.get(), options.ca_file.c_str()) != 1)
      problem = cannot("ca_file", options.ca_file, missing_or_reason("certificate"));
  } else if (options.verify) {
    problem = load_system_store(context.get());
  }
  if (!problem && !options.cert_file.empty()) problem = load_own_certificate(context.get(), options);
  if (problem) return std::move(*problem);
  return TlsContext(std::move(context));
}

void release_thread() { OPENSSL_thread_stop(); }

}  // namespace allowd::tls
