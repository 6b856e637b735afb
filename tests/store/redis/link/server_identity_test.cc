// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/server_identity.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/store/redis/codec/replies.h"

namespace allowd::store {
namespace {

Reply info(const std::string& text) {
  return testing::parsed("$" + std::to_string(text.size()) + "\r\n" + text + "\r\n");
}

ServerIdentity identity(const std::string& run_id, const std::string& replication_id) {
  ServerIdentity server;
  server.read(info("# Server\r\nredis_version:7.0.15\r\nrun_id:" + run_id + "\r\n"));
  server.read(info("# Replication\r\nrole:master\r\nmaster_replid:" + replication_id +
                   "\r\nmaster_replid2:0000\r\n"));
  return server;
}

TEST_CASE("server identity: the same process with the same history, and no other") {
  const ServerIdentity server = identity("a", "h");
  CHECK(server.major_version == 7);
  CHECK(server.is_same_as(identity("a", "h")));
  CHECK_FALSE(server.is_same_as(identity("b", "h")));
  CHECK_FALSE(server.is_same_as(identity("a", "i")));
}

TEST_CASE("server identity: who does not say who it is, is nobody") {
  const ServerIdentity nobody;
  CHECK_FALSE(nobody.is_same_as(nobody));
  ServerIdentity half;
  half.read(info("redis_version:6.2\r\nrun_id:a\r\n"));
  half.read(testing::parsed("-NOPERM no INFO for you\r\n"));
  half.read(nullptr);
  CHECK(half.major_version == 6);
  CHECK_FALSE(half.is_same_as(half));
  CHECK_FALSE(half.is_still_master(info("role:master\r\nmaster_replid:\r\n")));
}

TEST_CASE("server identity: a master that was demoted, or promoted again, is another one") {
  const ServerIdentity server = identity("a", "h");
  CHECK(server.is_still_master(info("# Replication\r\nrole:master\r\nmaster_replid:h\r\n")));
  CHECK_FALSE(server.is_still_master(info("role:slave\r\nmaster_replid:h\r\n")));
  CHECK_FALSE(server.is_still_master(info("role:master\r\nmaster_replid:i\r\n")));
  CHECK_FALSE(server.is_still_master(info("xrole:master\r\nmaster_replid:h\r\n")));
  CHECK_FALSE(server.is_still_master(nullptr));
}

}  // namespace
}  // namespace allowd::store
