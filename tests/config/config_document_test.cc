// SPDX-License-Identifier: MIT
//
// CONFIG.md and the code, held together: what the one describes the other reads, with the same defaults.
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "agent/config/config.h"
#include "tests/support/printing.h"

namespace allowd::config {
namespace {

struct Option {
  std::string table;  // as TOML names it: "agent", "redis", "limits.x"
  std::string key;
  std::string default_value;  // as written between backticks; empty when the document says it in words
};

std::string between_backticks(const std::string& cell) {
  const std::size_t begin = cell.find('`'), end = cell.find('`', begin + 1);
  const bool is_alone = begin != std::string::npos && end != std::string::npos &&
                        cell.find_first_not_of(' ') == begin && cell.find_last_not_of(' ') == end;
  return is_alone ? cell.substr(begin + 1, end - begin - 1) : "";
}

// The rows of the tables under "## [agent]" and the like.
std::vector<Option> documented_options() {
  std::ifstream file(ALLOWD_CONFIG_DOCUMENT);
  REQUIRE(file.is_open());
  std::vector<Option> options;
  std::string table;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) {
      table.clear();
      const std::size_t open = line.find('['), close = line.find(']');
      if (open != std::string::npos && close != std::string::npos)
        table = line.substr(open + 1, close - open - 1);
      if (table == "limits.NAME") table = "limits.x";
    }
    if (table.empty() || !line.starts_with("| `")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(cell);
    REQUIRE(cells.size() >= 3);
    options.push_back({table, between_backticks(cells[0]), between_backticks(cells[2])});
  }
  return options;
}

// The beginning of a table, with what it needs to be whole beside `key`.
std::string head_of(const Option& option) {
  std::string text = "[" + option.table + "]\n";
  if (option.table == "redis.tls") text.insert(0, "[redis]\nurl = \"rediss://h\"\n");
  if (option.table == "redis" && option.key != "url" && option.key != "shards" && option.key != "cluster" &&
      option.key != "sentinel")
    text += "url = \"redis://h\"\n";
  if (option.table == "limits.x" && option.key != "rate" && option.key != "tiers") text += "rate = \"5/s\"\n";
  return text;
}

TEST_CASE("config document: every option that it describes is read") {
  const auto options = documented_options();
  CHECK(options.size() >= 15);
  for (const Option& option : options) {
    CAPTURE(option.table + "." + option.key);
    // No option is a date: a known key complains about the type, an unknown one about its name.
    auto config = parse_config(head_of(option) + option.key + " = 1979-05-27\n", "f");
    REQUIRE_FALSE(config);
    CHECK(config.error().message.find(option.table + "." + option.key + ": must be") != std::string::npos);
  }
}

TEST_CASE("config document: every option that is read is described") {
  const std::string text =
      "[agent]\nsocket = \"/s\"\nsocket_group = \"g\"\nadmin_socket = \"/a\"\n[redis]\nurl = "
      "\"redis://h\"\npassword_file = \"/f\"\n[limits.x]\nrate = \"1/s\"\nlease = 5\non_failure = "
      "\"local\"\nlocal_share = "
      "3\noverrides = { k = { deny = true } }\nplans = { "
      "p = { rate "
      "= "
      "\"2/s\" } }\nmax_new_keys_per_second = 9\noverflow = { rate = \"3/s\" }\n[limits.s]\nrate = \"4/s\"\n"
      "split = 2\n[limits.y]\nrate = \"1/s\"\nalgorithm = \"fixed_window\"\n[limits.z]\ntiers = [ { name = "
      "\"t\", rate = \"1/s\" } ]\n";
  auto config = parse_config(text, "f");
  auto other = parse_config(
      "[redis]\nshards = [ { name = \"s\", url = \"rediss://h\" } ]\n[redis.tls]\nca_file = \"/a\"\n"
      "cert_file = \"/c\"\nkey_file = \"/k\"\nserver_name = \"n\"\n",
      "f");
  auto third = parse_config("[redis]\nsentinel = { master = \"m\", nodes = [ \"redis://h\" ] }\n", "f");
  auto cluster = parse_config("[redis]\ncluster = [ \"redis://h\" ]\n", "f");
  REQUIRE(config);
  REQUIRE(other);
  REQUIRE(cluster);
  REQUIRE(third);
  std::map<std::string, int> described;
  for (const Option& option : documented_options()) ++described[option.table + "." + option.key];
  std::istringstream lines(to_toml(*config) + to_toml(*other) + to_toml(*cluster) + to_toml(*third));
  std::string table;
  std::set<std::string> keys;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[")) {
      table = line.substr(1, line.size() - 2);
      if (!table.starts_with("limits.")) continue;
      // "[limits."x".overrides]" is a key of the limit, and what stands in it is a user's.
      const std::size_t nested = table.find("\".");
      table = nested == std::string::npos ? "limits.x" : "";
      if (nested != std::string::npos)
        keys.insert("limits.x." + line.substr(nested + 3, line.size() - nested - 4));
    } else if (const std::size_t equals = line.find(" = "); equals != std::string::npos && !table.empty()) {
      CAPTURE(line);
      CHECK(described[table + "." + line.substr(0, equals)] == 1);
      keys.insert(table + "." + line.substr(0, equals));
    }
  }
  for (const auto& [key, times] : described) {
    CAPTURE(key);
    CHECK(times == 1);
    CHECK(keys.contains(key));
  }
}

TEST_CASE("config document: the defaults that it states are the real ones") {
  int stated = 0;
  for (const Option& option : documented_options()) {
    if (option.default_value.empty() || option.default_value.starts_with("["))
      continue;  // another option's value
    CAPTURE(option.table + "." + option.key + " = " + option.default_value);
    auto implied = parse_config(head_of(option), "f");
    auto spelled = parse_config(head_of(option) + option.key + " = " + option.default_value + "\n", "f");
    REQUIRE(implied);
    REQUIRE(spelled);
    CHECK(to_toml(*implied) == to_toml(*spelled));
    ++stated;
  }
  CHECK(stated >= 7);
}

}  // namespace
}  // namespace allowd::config
