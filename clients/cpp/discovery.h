// SPDX-License-Identifier: MIT
//
// Where the agent's sockets are, by the rules that every client follows (clients/README.md).
#pragma once

#include <string>
#include <string_view>

namespace allowd::client {

// $ALLOWD_SOCKET, else the first that exists of /run/allowd/allowd.sock, $XDG_RUNTIME_DIR/allowd.sock and
// /tmp/allowd-<uid>/allowd.sock; the first of these when none does.
[[nodiscard]] std::string find_socket();

// $ALLOWD_ADMIN_SOCKET, else `socket_path` with `.sock` replaced by (else followed by) `.admin.sock`.
[[nodiscard]] std::string find_admin_socket(std::string_view socket_path);

}  // namespace allowd::client
