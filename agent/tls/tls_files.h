// SPDX-License-Identifier: MIT
//
// The files that a TLS context is made of, and how to tell that they have not changed without reading them:
// the system's store alone may be some hundred files, whose parsing takes a slow host a second.
//
// Errors     What cannot be looked at is stamped as such: whoever reads it says why.
// Source     That a file which has just been written may be written again within one tick of the file
//            system's clock, and look the same: "racy git" (Git's technical documentation).
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent/tls/tls_options.h"

namespace allowd::tls {

// Where the system keeps whom it trusts, as OpenSSL looks for it: a bundle, and directories of hashed files.
struct SystemStore {
  std::string bundle;
  std::string directories;         // separated by colons
  std::vector<std::string> files;  // the certificates in those: blocking
};
[[nodiscard]] SystemStore find_system_store();

struct FileStamp {
  std::string text;
  // False while a file is so young that a change need not show.
  bool is_settled = false;

  // Whether what was read when `before` was taken is what would be read now.
  [[nodiscard]] bool shows_no_change_since(const FileStamp& before) const {
    return before.is_settled && text == before.text;
  }
};
// Looks at all files that TlsContext::make would read: blocking. `now` is the wall clock's.
[[nodiscard]] FileStamp stamp_of(const TlsOptions& options, std::chrono::system_clock::time_point now);

}  // namespace allowd::tls
