// SPDX-License-Identifier: MIT
#include "agent/reload/reloader.h"

#include <fstream>
#include <optional>

#include "tests/support/temporary_directory.h"
#include "tests/support/turns.h"

namespace allowd::reload {
namespace {

struct Scene {
  Scene() {
    write("[limits.api]\nrate = \"1/s\"\n");
    auto config = config::load_config(path);
    REQUIRE(config);
    status.hash = config::hash_of(*config);
    table.emplace(*config, registry);
    reloader.emplace(loop, path, *config, *table, status);
  }
  void write(const std::string& text) const { std::ofstream(path) << text; }
  // Reloads, and returns the lines or "error: ...".
  std::string reload() {
    std::optional<std::string> answer;
    reloader->reload([&](const Result<std::string>& result) {
      answer = result ? *result : "error: " + result.error().message;
    });
    testing::turn_until(loop, [&] { return answer.has_value(); });
    return *answer;
  }
  std::int64_t burst() const { return (*table->find("api"))->base().definition->bucket().burst(); }

  testing::TemporaryDirectory directory;
  std::string path = directory / "allowd.toml";
  loop::Loop loop;
  stats::Registry registry;
  admin::ConfigStatus status;
  std::optional<decide::LimitTable> table;
  std::optional<Reloader> reloader;
};

TEST_CASE("reloader: a changed file is swapped in, and counted") {
  Scene scene;
  const std::string before = scene.status.hash;
  scene.write("[limits.api]\nrate = \"9/s\"\n[limits.b]\nrate = \"1/s\"\n");
  CHECK(scene.reload() == "reloaded: generation 2, 2 limits\n");
  CHECK(scene.burst() == 9);
  CHECK(scene.status.generation == 2);
  CHECK(scene.status.hash != before);
}

TEST_CASE("reloader: a bad file changes nothing, and is remembered until one succeeds") {
  Scene scene;
  const std::string before = scene.status.hash;
  scene.write("[limits.api]\nrat = \"9/s\"\n");
  const std::string answer = scene.reload();
  CHECK(answer.ends_with("allowd.toml:2: limits.api.rat: unknown key; did you mean rate?"));
  CHECK(scene.burst() == 1);
  CHECK(scene.status.generation == 1);
  CHECK(scene.status.hash == before);
  CHECK("error: " + scene.status.reload_error == answer);
  scene.write("[limits.api]\nrate = \"3/s\"\n");
  CHECK(scene.reload() == "reloaded: generation 2, 1 limits\n");
  CHECK(scene.status.reload_error.empty());
}

TEST_CASE("reloader: what needs a restart is said") {
  Scene scene;
  scene.write(
      "[agent]\nsocket = \"/elsewhere.sock\"\nmax_keys = 5\ndeadline = \"9ms\"\n[redis]\nurl = "
      "\"redis://h\"\n");
  CHECK(scene.reload() ==
        "reloaded: generation 2, 0 limits\n"
        "agent.socket has changed: that takes effect at a restart\n"
        "agent.max_keys has changed: that takes effect at a restart\n"
        "redis has changed: that takes effect at a restart\n");
}

TEST_CASE("reloader: every key that needs a restart is compared") {
  const std::string base = "[redis]\nurl = \"redis://h\"\n";
  const auto changes = [&](const std::string& text) {
    return changes_for_restart(*config::parse_config(base, "f"), *config::parse_config(text, "f"));
  };
  using Keys = std::vector<std::string>;
  CHECK(changes(base).empty());
  CHECK(changes("[agent]\nsocket_mode = \"0600\"\n" + base) == Keys{"agent.socket_mode"});
  CHECK(changes("[agent]\nsocket_group = \"g\"\n" + base) == Keys{"agent.socket_group"});
  CHECK(changes("[agent]\nadmin_socket = \"/a\"\n" + base) == Keys{"agent.admin_socket"});
  CHECK(changes("[agent]\nmax_connections = 7\n" + base) == Keys{"agent.max_connections"});
  CHECK(changes("[agent]\nshadow = true\n" + base + "[limits.a]\nrate = \"1/s\"\n").empty());
  CHECK(changes("[redis]\nurl = \"redis://:secret@h\"\n") == Keys{"redis.url"});
  CHECK(changes("[redis]\nshards = [ { name = \"a\", url = \"redis://h\" } ]\n") == Keys{"redis.shards"});
  CHECK(changes("[redis]\nshards = [ { name = \"redis\", url = \"redis://h\" } ]\n").empty());
  CHECK(changes(base + "prefix = \"p\"\n") == Keys{"redis.prefix"});
  CHECK(changes(base + "reconnect_max = \"9s\"\n") == Keys{"redis.reconnect_max"});
  CHECK(changes("") == Keys{"redis"});
  CHECK(changes("[redis]\nurl = \"rediss://h\"\n[redis.tls]\nverify = false\n") ==
        Keys{"redis.url", "redis.tls"});
}

TEST_CASE("reloader: reloads that are asked for meanwhile follow, and all are answered") {
  Scene scene;
  int answers = 0;
  for (int i = 0; i < 5; ++i) {
    scene.reloader->reload([&](const Result<std::string>& result) {
      CHECK(result);
      ++answers;
    });
  }
  testing::turn_until(scene.loop, [&] { return answers == 5; });
  CHECK(scene.status.generation == 3);  // one, and one more for the four that came later
}

TEST_CASE("reloader: without a file there is nothing to load") {
  Scene scene;
  scene.reloader.emplace(scene.loop, "", config::Config{}, *scene.table, scene.status);
  CHECK(scene.reload() == "error: the agent was started without a config file");
  CHECK(scene.burst() == 1);
}

}  // namespace
}  // namespace allowd::reload
