// SPDX-License-Identifier: MIT
//
// The certificates and keys of all TLS connections to Redis. Every attempt to connect looks whether their
// files have changed, and reads them again if so: rotated ones are followed without a restart.
//
// Files are looked at and read off the loop. While one cannot be read, or certificate and key do not belong
// together (as in the midst of a rotation), what was read before stays in use; the log says so once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/loop/background_task.h"
#include "agent/tls/tls_context.h"
#include "agent/tls/tls_files.h"

namespace allowd::store {

class TlsMaterial {
 public:
  using Done = std::function<void(const Result<tls::TlsContext>&)>;
  // Whoever drops it is not called any more.
  using Wish = std::shared_ptr<Done>;

  // Says in the log when certificates are not verified.
  TlsMaterial(loop::Loop& loop, tls::TlsOptions options);

  // Calls `done` later, once. Who asks while files are being read gets what comes of that.
  [[nodiscard]] Wish read(Done done);
  // Whom the certificate of the server at `host` must be made out to.
  [[nodiscard]] const std::string& server_name(const std::string& host) const {
    return options_.server_name.empty() ? host : options_.server_name;
  }

 private:
  // What comes of reading, or of seeing that there is no need to.
  struct Found {
    tls::FileStamp stamp;
    Result<tls::TlsContext> context;
  };

  void start();
  void finish(Found found);

  tls::TlsOptions options_;
  std::vector<std::weak_ptr<Done>> waiting_;
  std::optional<tls::TlsContext> last_good_;
  tls::FileStamp last_stamp_;  // when that was read
  bool has_reported_ = false;  // that files cannot be read
  loop::BackgroundTask task_;
};

}  // namespace allowd::store
