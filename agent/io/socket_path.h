// SPDX-License-Identifier: MIT
//
// Where the daemon's sockets are when the config does not say.
#pragma once

#include <string>
#include <string_view>

#include "agent/result/result.h"

namespace allowd::io {

// $ALLOWD_SOCKET, else /run/allowd/allowd.sock if it may be created, else $XDG_RUNTIME_DIR/allowd.sock, else
// /tmp/allowd-<uid>/allowd.sock, whose directory is made (0700, and refused when it is somebody else's).
[[nodiscard]] Result<std::string> default_socket_path();

// The path with `.sock` replaced by (else followed by) `.admin.sock`.
[[nodiscard]] std::string derive_admin_path(std::string_view socket_path);

}  // namespace allowd::io
