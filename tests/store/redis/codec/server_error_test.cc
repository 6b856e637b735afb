// SPDX-License-Identifier: MIT
//
// Error replies as servers of several versions really send them.
#include "agent/store/redis/codec/server_error.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

namespace allowd::store {
namespace {

TEST_CASE("an error is told by its first word") {
  const std::vector<std::pair<std::string_view, ServerError>> replies{
      {"NOSCRIPT No matching script. Please use EVAL.", ServerError::script_lost},
      {"MOVED 3999 127.0.0.1:6381", ServerError::moved},
      {"ASK 3999 127.0.0.1:6381", ServerError::ask},
      {"TRYAGAIN Multiple keys request during rehashing of slot", ServerError::try_again},
      {"CLUSTERDOWN Hash slot not served", ServerError::cluster_down},
      {"READONLY You can't write against a read only replica. script: 1fa0, on @user_script:1.",
       ServerError::wrong_server},
      {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
       ServerError::wrong_server},
      {"LOADING Redis is loading the dataset in memory", ServerError::busy},
      {"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
       ServerError::busy},
      {"OOM command not allowed when used memory > 'maxmemory'. script: 1fa0, on @user_script:1.",
       ServerError::no_memory},
      {"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
       ServerError::cannot_persist},
      {"NOREPLICAS Not enough good replicas to write.", ServerError::cannot_persist},
      {"NOAUTH Authentication required.", ServerError::not_permitted},
      {"WRONGPASS invalid username-password pair or user is disabled.", ServerError::not_permitted},
      {"NOPERM this user has no permissions to run the 'evalsha' command", ServerError::not_permitted},
      {"ERR unknown command 'HELLO'", ServerError::other},
      {"", ServerError::other},
      {"OOMPH is no code", ServerError::other},
  };
  for (const auto& [text, kind] : replies) {
    CAPTURE(text);
    CHECK(read_error(text).kind == kind);
    CHECK(read_error(text).code == text.substr(0, text.find(' ')));
  }
}

TEST_CASE("before Redis 7 the code of a script's call stands inside") {
  const ErrorReply full = read_error(
      "ERR Error running script (call to f_1fa0): @user_script:9: @user_script: 9: -OOM command not allowed "
      "when used memory > 'maxmemory'.");
  CHECK(full.kind == ServerError::no_memory);
  CHECK(full.code == "OOM");
  CHECK(
      read_error("ERR Error running script (call to f_1fa0): @user_script:9: @user_script: 9: -READONLY You "
                 "can't write against a read only replica.")
          .kind == ServerError::wrong_server);
  // A minus sign that begins no code.
  CHECK(read_error("ERR Error running script (call to f_1fa0): @user_script:9: user_script:9: attempt to "
                   "compare -1 with nil")
            .kind == ServerError::other);
}

TEST_CASE("a command that a script's user may not call") {
  CHECK(read_error("ERR The user executing the script can't run this command or subcommand script: 1fa0, on "
                   "@user_script:1.")
            .kind == ServerError::not_permitted);
  CHECK(read_error("ERR Error running script (call to f_1fa0): @user_script:1: @user_script: 1: The user "
                   "executing the script can't run this command or subcommand")
            .kind == ServerError::not_permitted);
  CHECK(read_error("ERR ACL failure in script: User limiter has no permissions to run the 'set' command "
                   "script: 1fa0, on @user_script:56.")
            .kind == ServerError::not_permitted);
}

TEST_CASE("a code is never longer than a counter's name may be") {
  const std::string text(100, 'X');
  CHECK(read_error(text).code.size() == 32);
}

TEST_CASE("redirections") {
  const auto to_ipv4 = read_redirection("MOVED 3999 127.0.0.1:6381");
  REQUIRE(to_ipv4);
  CHECK(to_ipv4->slot == 3999);
  CHECK(to_ipv4->host == "127.0.0.1");
  CHECK(to_ipv4->port == 6381);
  CHECK(read_redirection("ASK 0 ::1:7000")->host == "::1");
  CHECK(read_redirection("MOVED 16383 redis-2.example:7000")->host == "redis-2.example");
  CHECK(read_redirection("MOVED 1 :7000")->host.empty());
  for (const std::string_view bad : {"MOVED", "MOVED 1", "MOVED x a:1", "MOVED 16384 a:1", "MOVED 1 a",
                                     "MOVED 1 a:0", "MOVED 1 a:65536", "MOVED -1 a:1", "MOVED 1 a:1x"}) {
    CAPTURE(bad);
    CHECK_FALSE(read_redirection(bad));
  }
}

}  // namespace
}  // namespace allowd::store
