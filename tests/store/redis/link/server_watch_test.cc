// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/server_watch.h"

#include <doctest/doctest.h>

namespace allowd::store {
namespace {

TEST_CASE("server report: INFO is read line by line, whatever else stands in it") {
  ServerReport report;
  report.read(
      "# "
      "Memory\r\nused_memory:5\r\nmaxmemory:100\r\nmaxmemory_human:100B\r\nmaxmemory_policy:allkeys-lru\r\n");
  report.read("# Stats\r\nexpired_keys:3\r\nevicted_keys:17\r\n");
  CHECK(report.maxmemory == 100);
  CHECK(report.maxmemory_policy == "allkeys-lru");
  CHECK(report.evicted_keys == 17);
  CHECK(report.may_evict());
}

TEST_CASE("server report: what is not said is not known") {
  ServerReport report;
  CHECK_FALSE(report.may_evict());
  report.read("xmaxmemory_policy:allkeys-lru\r\nevicted_keys:many\r\nmaxmemory");
  CHECK_FALSE(report.maxmemory_policy.has_value());
  CHECK_FALSE(report.evicted_keys.has_value());
  CHECK_FALSE(report.may_evict());
}

TEST_CASE("server report: a server without a bound evicts nothing, whatever its policy") {
  ServerReport report;
  report.read("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n");
  CHECK_FALSE(report.may_evict());
  report.read("maxmemory:5\r\nmaxmemory_policy:noeviction\r\n");
  CHECK_FALSE(report.may_evict());
  // One that hides its bound has one.
  ServerReport hidden;
  hidden.read("maxmemory_policy:volatile-ttl\r\n");
  CHECK(hidden.may_evict());
}

TEST_CASE("server watch: a server is slow when more than one answer in a hundred is, and not a single one") {
  CHECK_FALSE(ServerWatch::are_slow({.all = 0, .slow = 0}));
  CHECK_FALSE(ServerWatch::are_slow({.all = 3, .slow = 1}));
  CHECK(ServerWatch::are_slow({.all = 3, .slow = 2}));
  CHECK_FALSE(ServerWatch::are_slow({.all = 200, .slow = 2}));
  CHECK(ServerWatch::are_slow({.all = 199, .slow = 2}));
  CHECK(ServerWatch::are_slow({.all = 200, .slow = 3}));
}

}  // namespace
}  // namespace allowd::store
