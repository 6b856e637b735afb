// SPDX-License-Identifier: MIT
//
// What a client's TLS rests on: whom it believes, who it says it is, whom it expects.
#pragma once

#include <string>

namespace allowd::tls {

// Files are PEM.
struct TlsOptions {
  std::string ca_file = {};      // whose signatures count; empty: the system's store
  std::string cert_file = {};    // this side's certificate, then the rest of its chain; together with
  std::string key_file = {};     // its private key, without a passphrase; or neither
  std::string server_name = {};  // asked for and verified; empty: the host that is connected to
  bool verify = true;            // whether the server's certificate is looked at

  bool operator==(const TlsOptions&) const = default;
};

}  // namespace allowd::tls
