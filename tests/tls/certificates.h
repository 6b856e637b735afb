// SPDX-License-Identifier: MIT
//
// Certificates for tests, made in memory: an authority and what it signs.
//
// Ownership  A Certificate shares its OpenSSL objects; copy it freely.
#pragma once

#include <openssl/x509.h>

#include <memory>
#include <string>

namespace allowd::testing {

struct Certificate {
  std::shared_ptr<X509> x509;
  std::shared_ptr<EVP_PKEY> key;

  [[nodiscard]] std::string pem() const;
  // Encrypted if there is a passphrase.
  [[nodiscard]] std::string key_pem(const std::string& passphrase = "") const;
};

struct Wanted {
  std::string names = "DNS:redis.test";  // as OpenSSL writes subjectAltName; empty: none
  long seconds_from = -3600;             // from now
  long seconds_to = 3600;
};

[[nodiscard]] Certificate make_authority(const std::string& name);
[[nodiscard]] Certificate make_certificate(const Certificate& authority, const Wanted& wanted = {});

// Writes `text` to a file.
void write_file(const std::string& path, const std::string& text);

}  // namespace allowd::testing
