// SPDX-License-Identifier: MIT
//
// The C++ client against the daemon itself, whose path stands in $ALLOWD_BIN.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "clients/cpp/client.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace std::chrono_literals;
using allowd::client::Client;
using allowd::client::Decision;
using allowd::client::Options;
using allowd::client::Query;

// A daemon of the test's own, on its memory store.
class RealAgent {
 public:
  RealAgent() {
    const char* program = std::getenv("ALLOWD_BIN");
    REQUIRE_MESSAGE(program != nullptr, "ALLOWD_BIN names no daemon");
    const std::string config = directory_ / "allowd.toml";
    std::ofstream(config) << "[agent]\nsocket = \"" << path << "\"\n"
                          << "[limits.strict]\nrate = \"1/day\"\nburst = 3\n"
                          << "[limits.returnable]\nrate = \"1/day\"\nburst = 3\nrefund = true\n";
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::execl(program, program, "--config", config.c_str(), nullptr);
      ::_exit(127);
    }
    Client client({.socket_path = path, .timeout = 2s});
    for (int i = 0; client.ping(); ++i) {
      REQUIRE(i < 2000);
      std::this_thread::sleep_for(10ms);
    }
  }
  ~RealAgent() {
    ::kill(child_, SIGTERM);
    int status = -1;
    ::waitpid(child_, &status, 0);
    CHECK(status == 0);
  }
  RealAgent(const RealAgent&) = delete;
  RealAgent& operator=(const RealAgent&) = delete;

 private:
  allowd::testing::TemporaryDirectory directory_;
  pid_t child_ = -1;

 public:
  const std::string path = directory_ / "allowd.sock";
};

// Fails closed, so that a decision which the agent did not make is never taken for "allowed".
Options options_for(const RealAgent& agent) {
  return {.socket_path = agent.path, .timeout = 20s, .fail = Options::Fail::closed};
}

}  // namespace

TEST_CASE("client and agent: many are decided each by itself, or all or none") {
  const RealAgent agent;
  Client client(options_for(agent));
  const std::vector<Query> each{{.limit = "strict", .key = "a", .cost = 2},
                                {.limit = "strict", .key = "a", .cost = 2},
                                {.limit = "own", .key = "a", .rate = "1/day"}};
  const auto decided = client.allow_many(each);
  REQUIRE(decided.size() == 3);
  CHECK(decided[0].allowed);
  CHECK(decided[1].verdict == "limited");
  CHECK(decided[2].allowed);

  const std::vector<Query> all{{.limit = "strict", .key = "a"}, {.limit = "strict", .key = "b", .cost = 4}};
  const auto refused = client.allow_many(all, Client::Mode::all);
  CHECK(refused[0].verdict == "ok");
  CHECK(refused[1].verdict == "never");
  CHECK(client.peek({.limit = "strict", .key = "a"}).remaining == 1);

  const std::vector<Query> mistaken{{.limit = "strict", .key = "c"}, {.limit = "nowhere", .key = "c"}};
  for (const Decision& decision : client.allow_many(mistaken)) {
    REQUIRE(decision.problem);
    CHECK(decision.problem->code == "unknown_limit");
  }
}

TEST_CASE("client and agent: a refund gives back what was taken and no more, where the limit takes it") {
  const RealAgent agent;
  Client client(options_for(agent));
  CHECK(client.allow({.limit = "returnable", .key = "k", .cost = 3}).remaining == 0);
  CHECK(client.refund({.limit = "returnable", .key = "k", .cost = 2}).remaining == 2);
  CHECK(client.refund({.limit = "returnable", .key = "k", .cost = 2}).remaining == 3);
  const Decision forbidden = client.refund({.limit = "strict", .key = "k"});
  REQUIRE(forbidden.problem);
  CHECK(forbidden.problem->code == "forbidden");
}
