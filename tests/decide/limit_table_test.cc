// SPDX-License-Identifier: MIT
#include "agent/decide/limit_table.h"

#include <chrono>
#include <set>
#include <string>

#include "tests/support/encode.h"
#include "tests/support/printing.h"

namespace allowd::decide {
namespace {

using namespace std::chrono_literals;
namespace encode = testing::encode;

config::Config config_of(const std::string& text) {
  auto config = config::parse_config(text, "f");
  REQUIRE(config);
  return *config;
}

// A definition as the protocol hands it over; the strings must outlive it.
protocol::InlineLimit definition(const std::string& name, const std::string& rate, std::string& encoded) {
  encoded =
      encode::map(2) + encode::str("name") + encode::str(name) + encode::str("rate") + encode::str(rate);
  protocol::InlineLimit limit;
  limit.name = name;
  limit.encoded = encoded;
  limit.tiers[0].rate = rate;
  return limit;
}

TEST_CASE("limit table: names are equal to their last byte, whatever their length") {
  for (std::size_t size = 0; size <= 40; ++size) {
    const std::string name(size, 'n');
    CHECK(are_equal(name, std::string(size, 'n')));
    CHECK_FALSE(are_equal(name, name + "n"));
    for (std::size_t at = 0; at < size; ++at) {
      std::string other = name;
      other[at] = 'm';
      CHECK_FALSE(are_equal(name, other));
    }
  }
}

TEST_CASE("limit table: configured limits are found by their exact names") {
  stats::Registry registry;
  const LimitTable table(
      config_of("[agent]\ndeadline = \"7ms\"\n[limits.api]\nrate = \"100/s\"\nburst = "
                "200\non_failure = \"deny\"\n[limits.b]\nrate = \"1/s\"\ndeadline = \"1s\"\n"),
      registry);
  CHECK(table.configured().size() == 2);
  const LimitPtr* api = table.find("api");
  REQUIRE(api != nullptr);
  CHECK((*api)->name() == "api");
  CHECK((*api)->base().tag == "n3:api:");
  CHECK((*api)->base().definition->bucket().burst() == 200);
  CHECK((*api)->on_failure() == config::FailurePolicy::deny);
  CHECK((*api)->deadline() == 7ms);
  CHECK((*table.find("b"))->deadline() == 1s);
  for (const char* unknown : {"", "ap", "apis", "API", "api ", "default"})
    CHECK(table.find(unknown) == nullptr);
  // In any order, and again.
  for (const char* name : {"api", "api", "b", "api", "none", "api", "b", "b"}) {
    const LimitPtr* found = table.find(name);
    CHECK((found != nullptr ? (*found)->name() : "none") == name);
  }
}

TEST_CASE("limit table: a limit of an application is parsed once and then known by its bytes") {
  stats::Registry registry;
  LimitTable table(config_of("[agent]\ndeadline = \"7ms\"\n"), registry);
  std::string encoded;
  const std::string name = "checkout", rate = "100/s";
  const auto first = table.find_or_parse(definition(name, rate, encoded));
  REQUIRE(first);
  CHECK((*first)->name() == "checkout");
  CHECK((*first)->base().tag == "i8:checkout:");
  CHECK((*first)->base().definition->bucket().burst() == 100);
  CHECK((*first)->on_failure() == config::FailurePolicy::allow);
  CHECK((*first)->deadline() == 7ms);
  const auto again = table.find_or_parse(definition(name, rate, encoded));
  REQUIRE(again);
  CHECK(*again == *first);  // the same object

  const std::string other_rate = "101/s";
  const auto changed = table.find_or_parse(definition(name, other_rate, encoded));
  REQUIRE(changed);
  CHECK(*changed != *first);
  CHECK((*changed)->base().tag == (*first)->base().tag);  // the same identity
}

TEST_CASE("limit table: a limit of an application never meets a configured one of that name") {
  stats::Registry registry;
  LimitTable table(config_of("[limits.api]\nrate = \"1/s\"\n"), registry);
  std::string encoded;
  const std::string name = "api", rate = "5/s";
  const auto found = table.find_or_parse(definition(name, rate, encoded));
  REQUIRE(found);
  CHECK((*found)->base().tag != (*table.find("api"))->base().tag);
  CHECK((*found)->base().definition->bucket().burst() == 5);
}

TEST_CASE("limit table: an own burst replaces the rate's count") {
  stats::Registry registry;
  LimitTable table({}, registry);
  std::string encoded;
  const std::string name = "n", rate = "5/s";
  auto with_burst = definition(name, rate, encoded);
  with_burst.tiers[0].burst = 70;
  const auto found = table.find_or_parse(with_burst);
  REQUIRE(found);
  CHECK((*found)->base().definition->bucket().burst() == 70);
}

TEST_CASE("limit table: what is wrong with a definition is said, and it is not kept") {
  stats::Registry registry;
  LimitTable table({}, registry);
  std::string encoded;
  const std::string name = "n";
  for (const std::string rate : {"", "100", "fast", "0/s", "5/0s"}) {
    auto refused = table.find_or_parse(definition(name, rate, encoded));
    CAPTURE(rate);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.starts_with("limit.rate: "));
  }
  for (const std::int64_t burst : {std::int64_t{0}, std::int64_t{-1}, INT64_MAX}) {
    const std::string rate = "5/s";
    auto wrong = definition(name, rate, encoded);
    wrong.tiers[0].burst = burst;
    auto refused = table.find_or_parse(wrong);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.starts_with("limit.burst: "));
  }
  CHECK(registry.decisions().empty());
}

TEST_CASE("limit table: an application's names have no control characters, as configured ones") {
  stats::Registry registry;
  LimitTable table({}, registry);
  std::string encoded;
  const std::string rate = "5/s";
  for (const std::string& name : {std::string("a\nb"), std::string("a\0b", 3), std::string("\x7f")}) {
    CAPTURE(name);
    auto refused = table.find_or_parse(definition(name, rate, encoded));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message == "limit.name: must have 1 to 128 bytes and no control characters");

    auto tiers = definition(rate, rate, encoded);
    tiers.tiers[0].name = name;
    refused = table.find_or_parse(tiers);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message ==
          "limit.tiers: a tier's name must have 1 to 128 bytes and no control characters");
  }
  for (const std::string& name : std::vector<std::string>{"caf\xc3\xa9 / \"x\"", "\xff"})
    CHECK(table.find_or_parse(definition(name, rate, encoded)));
}

TEST_CASE("limit table: the 1024 newest definitions are kept, and a query keeps its own") {
  stats::Registry registry;
  LimitTable table({}, registry);
  std::string encoded;
  const std::string rate = "5/s", oldest_name = "0";
  auto oldest = table.find_or_parse(definition(oldest_name, rate, encoded));
  REQUIRE(oldest);
  const LimitPtr held = *oldest;
  for (std::size_t i = 1; i < LimitTable::kMaxInline; ++i) {
    const std::string name = std::to_string(i);
    REQUIRE(table.find_or_parse(definition(name, rate, encoded)));
  }
  CHECK(*table.find_or_parse(definition(oldest_name, rate, encoded)) == held);
  CHECK(held.use_count() == 3);  // the table's, `oldest`'s and ours

  const std::string one_more = "one more";
  REQUIRE(table.find_or_parse(definition(one_more, rate, encoded)));
  CHECK(held.use_count() == 2);  // the table has let go of it
  CHECK(held->base().definition->bucket().burst() == 5);
  CHECK(*table.find_or_parse(definition(oldest_name, rate, encoded)) != held);
}

TEST_CASE("limit table: however many limits applications bring, they are counted as one") {
  stats::Registry registry;
  LimitTable table(config_of("[limits.api]\nrate = \"1/s\"\n"), registry);
  std::string encoded;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = std::to_string(i), rate = "5/s";
    REQUIRE(table.find_or_parse(definition(name, rate, encoded)));
  }
  CHECK(registry.decisions().size() == 4);  // api and inline, each with its overflow
}

TEST_CASE("limit table: names that are not configured fall to `default` if there is one") {
  stats::Registry registry;
  const LimitTable table(config_of("[limits.default]\nrate = \"1/s\"\n[limits.api]\nrate = \"2/s\"\n"),
                         registry);
  CHECK((*table.find("api"))->name() == "api");
  for (const char* other : {"default", "x", ""}) CHECK((*table.find(other))->name() == "default");
}

TEST_CASE("limit table: the longest override decides, before a plan, before the limit") {
  stats::Registry registry;
  const LimitTable table(config_of("[limits.api]\nrate = \"1/s\"\nplans = { pro = { rate = \"5/s\" } "
                                   "}\noverrides = { \"a*\" = { rate = "
                                   "\"2/s\" }, \"ab*\" = { unlimited = true }, \"ab\" = { deny = true } }\n"),
                         registry);
  const Limit& api = **table.find("api");
  const auto capacity = [&](std::string_view key, std::string_view plan) {
    return api.rule_for(key, plan).definition->bucket().burst();
  };
  using Override = config::Override;
  CHECK(capacity("x", "") == 1);
  CHECK(capacity("x", "pro") == 5);
  CHECK(capacity("x", "none") == 1);
  CHECK(capacity("a", "pro") == 2);
  CHECK(api.rule_for("ab", "").kind == Override::Kind::deny);
  CHECK(api.rule_for("abc", "pro").kind == Override::Kind::unlimited);
  CHECK(api.rule_for("x", "pro").tag == api.base().tag);
  CHECK(api.has_plan("pro"));
  CHECK_FALSE(api.has_plan(""));
}

TEST_CASE(
    "limit table: a key is hashed under a secret, apart from those of other limits and kinds of state") {
  stats::Registry registry;
  const config::Config config = config_of(
      "[limits.api]\nrate = \"1/s\"\n[limits.apis]\nrate = \"1/s\"\n[limits.api.overrides]\n"
      "log = { rate = \"5/min\", algorithm = \"sliding_log\" }\nlogs = { rate = \"9/min\", algorithm = "
      "\"sliding_log\" }\n");
  const store::HashSecret secret{1, 2, 3, 4};
  LimitTable table(config, registry, secret);
  std::string encoded;
  auto brought = table.find_or_parse(definition("api", "1/s", encoded));
  REQUIRE(brought);
  std::set<store::KeyHash> hashes;
  for (const Limit* limit : {table.find("api")->get(), table.find("apis")->get(), brought->get()}) {
    for (const char* key : {"", "k", "l", "log"}) {
      CHECK(hashes.insert(limit->hash_of(key)).second);
      CHECK(hashes.insert(limit->hash_of(key).salted(limit->rule_for(key, "").salt)).second);
    }
    if (limit->overflow() != nullptr) CHECK(hashes.insert(limit->overflow()->hash).second);
  }
  const Limit& api = **table.find("api");
  CHECK(api.rule_for("log", "").salt != api.base().salt);
  CHECK(api.rule_for("log", "").salt == api.rule_for("logs", "").salt);  // one kind of state
  for (const KeptAs& kept : api.kept_as()) {
    if (kept.tag == api.base().tag) CHECK(kept.salt == api.base().salt);
  }
  // What is kept of a key is found again after a reload, and by nobody who does not know the secret.
  const store::KeyHash before = api.hash_of("k");
  const std::uint64_t salt = api.base().salt;
  table.load(config);
  CHECK((*table.find("api"))->hash_of("k") == before);
  CHECK((*table.find("api"))->base().salt == salt);
  const LimitTable other(config, registry, {1, 2, 3, 5});
  CHECK((*other.find("api"))->hash_of("k") != before);
}

TEST_CASE("limit table: loading replaces all limits, and who holds one keeps it") {
  stats::Registry registry;
  LimitTable table(config_of("[limits.a]\nrate = \"1/s\"\n[limits.b]\nrate = \"1/s\"\n"), registry);
  const LimitPtr held = *table.find("a");
  const auto* counters = held->base().decisions.front();
  table.load(config_of("[limits.a]\nrate = \"9/s\"\n[limits.c]\nrate = \"1/s\"\n"));
  CHECK(held->base().definition->bucket().burst() == 1);
  CHECK((*table.find("a"))->base().definition->bucket().burst() == 9);
  CHECK((*table.find("a"))->base().decisions.front() == counters);  // what was counted stays
  CHECK(table.find("b") == nullptr);
  CHECK(table.find("c") != nullptr);
  CHECK(table.configured().size() == 2);
}

TEST_CASE("limit table: a limit knows every tag under which its keys may be kept, each once") {
  stats::Registry registry;
  const LimitTable table(
      config_of("[limits.api]\nrate = \"1/s\"\nplans = { pro = { rate = \"5/s\" } }\n[limits.api.overrides]\n"
                "a = { rate = \"5/s\" }\nb = { rate = \"5/min\", algorithm = \"sliding_log\" }\n"
                "c = { rate = \"9/min\", algorithm = \"sliding_log\" }\nd = { unlimited = true }\n"
                "e = { rate = \"5/h\", algorithm = \"counter\" }\n"),
      registry);
  std::set<std::string> tags;
  for (const KeptAs& kept : (*table.find("api"))->kept_as()) CHECK(tags.insert(kept.tag).second);
  CHECK(tags == std::set<std::string>{"n3:api:", "nt3:api:", "nl60000000.3:api:", "nc3600000000.3:api:"});
}

TEST_CASE("limit table: overrides with other tiers are kept apart from the limit's") {
  stats::Registry registry;
  const LimitTable table(
      config_of("[limits.api]\ntiers = [ { name = \"x\", rate = \"1/s\" } ]\n[limits.api.overrides]\n"
                "a = { tiers = [ { name = \"x\", rate = \"7/s\" } ] }\n"
                "b = { tiers = [ { name = \"y\", rate = \"1/s\" } ] }\n"),
      registry);
  std::vector<std::string> tiers;
  for (const KeptAs& kept : (*table.find("api"))->kept_as()) {
    if (kept.tag == "nt3:api:") tiers.push_back(kept.definition->tiers().front().name);
  }
  CHECK(tiers == std::vector<std::string>{"x", "y"});
}

}  // namespace
}  // namespace allowd::decide
