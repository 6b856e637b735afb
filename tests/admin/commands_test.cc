// SPDX-License-Identifier: MIT
#include "agent/admin/commands.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/fake_store.h"
#include "tests/support/printing.h"
#include "tests/support/prometheus.h"

namespace allowd::admin {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using store::SteadyTime;
using testing::FakeStore;

constexpr SteadyTime at(limiter::Micros since_start) { return SteadyTime{since_start}; }

const char* const kConfig = R"(
  [limits.api]
  rate = "10/s"
  burst = 20
  [limits."my \"own\" é"]
  rate = "5/90min"
  on_failure = "deny"
  deadline = "1500us"
)";

struct Scene {
  Scene() { registry.add_source(fake); }

  // What a line is answered with, or nothing yet.
  std::optional<std::string> run(std::string_view line) {
    std::optional<std::string> answer;
    replies.clear();
    commands.run(line, at(100s), [this](std::string text) { replies.push_back(std::move(text)); });
    REQUIRE(replies.size() <= 1);
    if (!replies.empty()) answer = replies[0];
    return answer;
  }

  config::Config config = *config::parse_config(kConfig, "f");
  stats::Registry registry;
  decide::LimitTable table{config, registry};
  FakeStore fake;
  FakeStore host;
  decide::Decider decider{fake, host, table, registry};
  ConfigStatus status{.hash = "00c0ffee00c0ffee", .generation = 1, .reload_error = ""};
  Reporter reporter{"0.1.0", status, table, fake, registry, at(90s)};
  std::vector<std::function<void(const Result<std::string>&)>> reloads;
  Commands commands{reporter, table, decider, [this](auto done) { reloads.push_back(std::move(done)); }};
  std::vector<std::string> replies;
};

// Each line ended, none empty: an empty line is what ends an answer.
void check_shape(const std::string& answer) {
  CAPTURE(answer);
  REQUIRE_FALSE(answer.empty());
  CHECK(answer.back() == '\n');
  CHECK(answer.front() != '\n');
  CHECK(answer.find("\n\n") == std::string::npos);
}

TEST_CASE("admin commands: ping answers pong") {
  Scene scene;
  CHECK(scene.run("ping") == "pong\n");
  CHECK(scene.run("  ping \t") == "pong\n");
  CHECK(scene.run("\"ping\"") == "pong\n");
}

TEST_CASE("admin commands: help names every command, and every command that it names exists") {
  Scene scene;
  const auto help = scene.run("help");
  REQUIRE(help.has_value());
  check_shape(*help);
  std::istringstream lines(*help);
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    names.push_back(line.substr(0, line.find(' ')));
    const auto answer = scene.run(names.back());
    if (answer) CHECK_FALSE(answer->starts_with("error: unknown_command"));
  }
  CHECK(names == std::vector<std::string>{"help", "ping", "info", "stats", "top", "limits", "key", "reset",
                                          "shards", "reload"});
}

TEST_CASE("admin commands: no answer contains an empty line") {
  Scene scene;
  scene.fake.mode = FakeStore::Mode::grant;
  for (const char* line : {"help", "ping", "info", "stats", "stats json", "stats prom", "top", "top 1",
                           "limits", "key api user-1", "key api", "nothing", "", "\"",
                           "key api \"a\\x0a\\x0ab\"", "key \"\\x0a\\x0a\" k"}) {
    CAPTURE(line);
    const auto answer = scene.run(line);
    REQUIRE(answer.has_value());
    check_shape(*answer);
  }
}

TEST_CASE("admin commands: what cannot be run is one line that says why") {
  Scene scene;
  const std::vector<std::pair<std::string, std::string>> errors = {
      {"", "error: bad_request: no command; try help\n"},
      {"   ", "error: bad_request: no command; try help\n"},
      {"stop", "error: unknown_command: \"stop\"; try help\n"},
      {"PING", "error: unknown_command: \"PING\"; try help\n"},
      {"\"a\\x0ab\"", "error: unknown_command: \"a\\x0ab\"; try help\n"},
      {"ping now", "error: bad_request: usage: ping \n"},
      {"stats xml", "error: bad_request: usage: stats [json|prom]\n"},
      {"stats json prom", "error: bad_request: usage: stats [json|prom]\n"},
      {"top 0", "error: bad_request: usage: top [N], N from 1 to 100\n"},
      {"top 101", "error: bad_request: usage: top [N], N from 1 to 100\n"},
      {"top -1", "error: bad_request: usage: top [N], N from 1 to 100\n"},
      {"top 5x", "error: bad_request: usage: top [N], N from 1 to 100\n"},
      {"top \"\"", "error: bad_request: usage: top [N], N from 1 to 100\n"},
      {"top 99999999999999999999", "error: bad_request: usage: top [N], N from 1 to 100\n"},
      {"top 5 5", "error: bad_request: usage: top [N]\n"},
      {"key", "error: bad_request: usage: key LIMIT KEY\n"},
      {"key api", "error: bad_request: usage: key LIMIT KEY\n"},
      {"key api a b", "error: bad_request: usage: key LIMIT KEY\n"},
      {"key \"api", "error: bad_request: a quote is not closed, or an escape is not \\\" \\\\ or \\xNN\n"},
      {"key nosuch k", "error: unknown_limit: no limit is named \"nosuch\"\n"},
      {"key api " + std::string(1025, 'k'), "error: too_large: key is over 1024 bytes\n"},
  };
  for (const auto& [line, expected] : errors) {
    CAPTURE(line);
    CHECK(scene.run(line) == expected);
  }
  CHECK(scene.fake.asked.empty());
}

TEST_CASE("admin commands: info says what the agent is") {
  Scene scene;
  CHECK(scene.run("info") ==
        "version: 0.1.0\n"
        "protocol: 1\n"
        "features: [\"plan\", \"force\"]\n"
        "uptime_us: 10000000\n"
        "store: fake\n"
        "config_hash: 00c0ffee00c0ffee\n"
        "generation: 1\n"
        "reload_error: \n"
        "degraded: false\n"
        "agents: 0\n"
        "limits.api.on_failure: allow\n"
        "limits.api.shadow: false\n"
        "limits.api.tiers: [[\"\", 20, 2000000, \"token_bucket\"]]\n"
        "limits.my \"own\" é.on_failure: deny\n"
        "limits.my \"own\" é.shadow: false\n"
        "limits.my \"own\" é.tiers: [[\"\", 5, 5400000000, \"token_bucket\"]]\n");
  scene.fake.available = false;
  CHECK(scene.run("info")->find("degraded: true\n") != std::string::npos);
}

TEST_CASE("admin commands: the info of both sockets is one map, as the protocol describes it") {
  Scene scene;
  const json info = json::parse(scene.reporter.info(at(91s)).to_json());
  CHECK(info.at("version") == "0.1.0");
  CHECK(info.at("protocol") == 1);
  CHECK(info.at("features") == json::array({"plan", "force"}));
  CHECK(info.at("uptime_us") == 1'000'000);
  CHECK(info.at("generation") == 1);
  CHECK(info.at("limits").size() == 2);
  CHECK(info.at("limits").at("api").at("tiers") == json::parse(R"([["", 20, 2000000, "token_bucket"]])"));
}

TEST_CASE("admin commands: limits are listed as the config gave them") {
  Scene scene;
  CHECK(scene.run("limits") ==
        "# name tier algorithm rate capacity window shadow scope on_failure deadline overrides plans\n"
        "\"api\" \"\" token_bucket 10/s 20 2s no global allow 20ms 0 0\n"
        "\"my \\\"own\\\" \\xc3\\xa9\" \"\" token_bucket 5/90min 5 90min no global deny 1500us 0 0\n");
}

TEST_CASE("admin commands: stats come as text, JSON and Prometheus's format") {
  Scene scene;
  scene.fake.mode = FakeStore::Mode::grant;
  REQUIRE(scene.run("key api user-1").has_value());
  CHECK(scene.run("stats")->find("decisions api ok store 1\n") != std::string::npos);
  const auto tree = json::parse(*scene.run("stats json"));
  CHECK(tree.at("decisions").at("api").at("ok/store") == 1);
  CHECK(tree.at("fake_questions") == 1);
  const testing::PrometheusText prometheus(*scene.run("stats prom"));
  CHECK(prometheus.problem().empty());
  CHECK(prometheus.samples().at("allowd_fake_questions") == 1);
  CHECK(prometheus.samples().contains("allowd_build_info{version=\"0.1.0\"}"));
}

TEST_CASE("admin commands: top shows the keys asked about most and refused most, quoted") {
  Scene scene;
  CHECK(scene.run("top") ==
        "# queries error limit key (0 queries in 0 s; no error is above 0)\n"
        "# refusals error limit key (0 refusals in 0 s; no error is above 0)\n");
  scene.fake.mode = FakeStore::Mode::grant;
  for (int i = 0; i < 3; ++i) REQUIRE(scene.run("key api \"a\\x0a\\x0ab\"").has_value());
  REQUIRE(scene.run("key \"my \\\"own\\\" \\xc3\\xa9\" " + std::string(1024, 'k')).has_value());
  CHECK(scene.run("top") ==
        "# queries error limit key (4 queries in 0 s; no error is above 0)\n"
        "3 0 \"api\" \"a\\x0a\\x0ab\"\n"
        "1 0 \"my \\\"own\\\" \\xc3\\xa9\" \"" +
            std::string(64, 'k') +
            "\"...\n"
            "# refusals error limit key (0 refusals in 0 s; no error is above 0)\n");
  CHECK(scene.run("top 1")->find("kkk") == std::string::npos);
}

TEST_CASE("admin commands: top counts a query when it is asked and its refusal when it is decided") {
  Scene scene;
  const std::string limit = "\"my \\\"own\\\" \\xc3\\xa9\"";  // its policy denies
  CHECK_FALSE(scene.run("key " + limit + " k").has_value());
  CHECK(scene.run("top")->ends_with("# refusals error limit key (0 refusals in 0 s; no error is above 0)\n"));
  scene.decider.expire(at(101s));
  CHECK(scene.run("top") ==
        "# queries error limit key (1 queries in 0 s; no error is above 0)\n"
        "1 0 " +
            limit +
            " \"k\"\n"
            "# refusals error limit key (1 refusals in 0 s; no error is above 0)\n"
            "1 0 " +
            limit + " \"k\"\n");
}

TEST_CASE("admin commands: key peeks, and shows limit and key quoted") {
  Scene scene;
  scene.fake.mode = FakeStore::Mode::grant;
  CHECK(scene.run("key api \"a\\x00b\\\"\"") ==
        "limit: \"api\"\n"
        "key: \"a\\x00b\\\"\"\n"
        "verdict: ok\n"
        "source: store\n"
        "tier: \"\"\n"
        "capacity: 20\n"
        "remaining: 19\n"
        "retry_after_us: 0\n"
        "reset_after_us: 100000\n"
        "more_after_us: 100000\n");
  REQUIRE(scene.fake.asked.size() == 1);
  CHECK(scene.fake.asked[0].operation == limiter::Operation::peek);
  CHECK(scene.fake.asked[0].cost == 1);
  CHECK(scene.fake.asked[0].key == std::string("a\0b\"", 4));
}

TEST_CASE("admin commands: key works for the empty key and for names with blanks") {
  Scene scene;
  scene.fake.mode = FakeStore::Mode::grant;
  CHECK(scene.run("key \"my \\\"own\\\" \\xc3\\xa9\" \"\"")
            ->starts_with("limit: \"my \\\"own\\\" \\xc3\\xa9\"\nkey: \"\"\n"));
  CHECK(scene.fake.asked.at(0).key.empty());
}

TEST_CASE("admin commands: an answer of the store that comes later is given then, once") {
  Scene scene;
  CHECK_FALSE(scene.run("key api user-1").has_value());
  scene.fake.grant(scene.fake.asked.at(0), at(100s + 1ms));
  REQUIRE(scene.replies.size() == 1);
  CHECK(scene.replies[0].find("source: store\n") != std::string::npos);
  scene.decider.expire(at(1h));
  CHECK(scene.replies.size() == 1);
}

TEST_CASE("admin commands: a store that does not answer leaves the word to the policy") {
  Scene scene;
  CHECK_FALSE(scene.run("key api user-1").has_value());
  scene.decider.expire(at(100s + 20ms));
  REQUIRE(scene.replies.size() == 1);
  CHECK(scene.replies[0].find("source: fallback\n") != std::string::npos);
  scene.fake.grant(scene.fake.asked.at(0), at(101s));
  CHECK(scene.replies.size() == 1);
}

TEST_CASE("admin commands: reset forgets a key, or says that nobody knows") {
  Scene scene;
  CHECK(scene.run("reset api user-1") == "reset\n");
  CHECK(scene.fake.resets == std::vector<std::string>{"n3:api:user-1", "nt3:api:user-1"});
  scene.fake.available = false;
  CHECK(scene.run("reset api user-1") == "error: unavailable: the store cannot be reached\n");
  CHECK(scene.run("reset nobody user-1") == "error: unknown_limit: no limit is named \"nobody\"\n");
  CHECK(scene.run("reset api")->starts_with("error: bad_request: usage: reset LIMIT KEY"));
  CHECK(scene.run("reset api " + std::string(1025, 'k'))->starts_with("error: too_large: "));
}

TEST_CASE("admin commands: shards are what the store says of its servers") {
  Scene scene;
  CHECK(scene.run("shards") == "# name\nfake\n");
}

TEST_CASE("admin commands: reload answers when it is done") {
  Scene scene;
  std::vector<std::string> answers;
  for (int i = 0; i < 2; ++i)
    scene.commands.run("reload", at(1s), [&](std::string answer) { answers.push_back(std::move(answer)); });
  CHECK(answers.empty());
  REQUIRE(scene.reloads.size() == 2);
  scene.reloads[0](std::string("reloaded: generation 2, 1 limits\n"));
  scene.reloads[1](Error{Error::Code::bad_request, "f:1: limits.x: rate is missing"});
  CHECK(answers == std::vector<std::string>{"reloaded: generation 2, 1 limits\n",
                                            "error: bad_request: f:1: limits.x: rate is missing\n"});
}
}  // namespace
}  // namespace allowd::admin
