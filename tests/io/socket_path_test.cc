// SPDX-License-Identifier: MIT
#include "agent/io/socket_path.h"

#include <cstdlib>
#include <string>

#include "tests/support/printing.h"

namespace allowd::io {
namespace {

TEST_CASE("socket path: the admin socket stands beside the application's") {
  CHECK(derive_admin_path("/run/allowd/allowd.sock") == "/run/allowd/allowd.admin.sock");
  CHECK(derive_admin_path("/run/allowd/socket") == "/run/allowd/socket.admin.sock");
  CHECK(derive_admin_path("/run/x.sock.old") == "/run/x.sock.old.admin.sock");
  CHECK(derive_admin_path("a.sock") == "a.admin.sock");
  CHECK(derive_admin_path(".sock") == ".admin.sock");
}

TEST_CASE("socket path: the environment goes before every other place") {
  REQUIRE(::setenv("ALLOWD_SOCKET", "/some/where.sock", 1) == 0);
  auto path = default_socket_path();
  ::unsetenv("ALLOWD_SOCKET");
  REQUIRE(path);
  CHECK(*path == "/some/where.sock");
}

}  // namespace
}  // namespace allowd::io
