// SPDX-License-Identifier: MIT
#include "agent/stats/hot_keys.h"

#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/support/printing.h"

namespace allowd::stats {
namespace {

using namespace std::chrono_literals;
using By = HotKeys::By;

constexpr HotKeys::Time at(std::chrono::microseconds since_start) { return HotKeys::Time{since_start}; }

const KeptName kApi("api"), kLogin("login");

HotKeys::Subject subject(const KeptName& limit, std::string_view key) {
  return {std::hash<std::string>{}(std::string(limit.kept()) + ":" + std::string(key)), limit, key};
}

void count(HotKeys& hot, std::string_view key, int times, HotKeys::Time now, bool is_refused = false) {
  for (int i = 0; i < times; ++i) hot.count(subject(kApi, key), is_refused, now);
}

std::map<std::string, std::uint64_t> counts(const HotKeys& hot, HotKeys::Time now, By by = By::queries) {
  std::map<std::string, std::uint64_t> all;
  for (const HotKeys::Row& row : hot.report(by, 1000, now).rows)
    all[std::string(row.key.kept())] += row.count;
  return all;
}

TEST_CASE("hot keys: before the first query there is nothing to report") {
  const HotKeys hot;
  const auto report = hot.report(By::queries, 10, at(1h));
  CHECK(report.rows.empty());
  CHECK(report.total == 0);
  CHECK(report.span == 0s);
}

TEST_CASE("hot keys: queries and refusals are ranked apart, the largest first") {
  HotKeys hot;
  count(hot, "busy", 5, at(1s));
  count(hot, "rejected", 3, at(1s), true);
  count(hot, "quiet", 1, at(1s));
  const auto queries = hot.report(By::queries, 10, at(3s));
  REQUIRE(queries.rows.size() == 3);
  CHECK(queries.total == 9);
  CHECK(queries.bound == 0);
  CHECK(queries.span == 2s);
  CHECK(queries.rows[0].key.kept() == "busy");
  CHECK(queries.rows[0].count == 5);
  CHECK(queries.rows[0].error == 0);
  CHECK(queries.rows[0].limit.kept() == "api");
  CHECK(queries.rows[1].key.kept() == "rejected");
  CHECK(queries.rows[2].key.kept() == "quiet");
  const auto refusals = hot.report(By::refusals, 10, at(3s));
  REQUIRE(refusals.rows.size() == 1);
  CHECK(refusals.total == 3);
  CHECK(refusals.rows[0].key.kept() == "rejected");
  CHECK(hot.report(By::queries, 2, at(3s)).rows.size() == 2);
  CHECK(hot.report(By::queries, 0, at(3s)).rows.empty());
}

TEST_CASE("hot keys: a key counts by limit") {
  HotKeys hot;
  hot.count(subject(kApi, "k"), false, at(1s));
  hot.count(subject(kLogin, "k"), false, at(1s));
  hot.count(subject(kLogin, "k"), false, at(1s));
  const auto report = hot.report(By::queries, 10, at(1s));
  REQUIRE(report.rows.size() == 2);
  CHECK(report.rows[0].limit.kept() == "login");
  CHECK(report.rows[0].count == 2);
  CHECK(report.rows[1].limit.kept() == "api");
}

TEST_CASE("hot keys: a refusal that is known later counts for the key that was asked about") {
  HotKeys hot;
  const std::string key(1024, 'k');
  const HotKeys::Asked asked = hot.count_query(subject(kApi, key), at(1s));
  CHECK(hot.report(By::queries, 10, at(1s)).total == 1);
  CHECK(hot.report(By::refusals, 10, at(1s)).total == 0);
  hot.count_refusal(kApi, asked, at(2s));
  hot.count(subject(kApi, key), true, at(3s));
  const auto refusals = hot.report(By::refusals, 10, at(3s));
  REQUIRE(refusals.rows.size() == 1);
  CHECK(refusals.rows[0].count == 2);
  CHECK(refusals.rows[0].key.kept() == std::string(64, 'k'));
  CHECK(refusals.rows[0].key.is_cut());
}

TEST_CASE("hot keys: keys that differ only beyond what is kept are counted apart") {
  HotKeys hot;
  const std::string front(300, 'k');
  count(hot, front + "a", 2, at(1s));
  count(hot, front + "b", 1, at(1s));
  const auto report = hot.report(By::queries, 10, at(1s));
  REQUIRE(report.rows.size() == 2);
  CHECK(report.rows[0].count == 2);
  CHECK(report.rows[1].count == 1);
}

TEST_CASE("hot keys: a query is reported for one to two minutes, whoever else asks") {
  HotKeys hot;
  count(hot, "first", 1, at(10s));
  count(hot, "old", 4, at(69s));
  count(hot, "old", 3, at(70s));  // the next minute begins
  count(hot, "new", 2, at(129s));
  using Counts = std::map<std::string, std::uint64_t>;
  CHECK(counts(hot, at(129s)) == Counts{{"first", 1}, {"new", 2}, {"old", 7}});
  CHECK(hot.report(By::queries, 1, at(129s)).span == 119s);
  SUBCASE("with queries in each minute") {
    count(hot, "next", 1, at(130s));
    CHECK(counts(hot, at(130s)) == Counts{{"new", 2}, {"next", 1}, {"old", 3}});
    CHECK(hot.report(By::queries, 1, at(130s)).span == 60s);
    count(hot, "next", 1, at(190s));
    CHECK(counts(hot, at(190s)) == Counts{{"next", 2}});
  }
  SUBCASE("with none: looking is enough") {
    CHECK(counts(hot, at(130s)) == Counts{{"new", 2}, {"old", 3}});
    CHECK(hot.report(By::queries, 1, at(189s)).span == 119s);
    CHECK(counts(hot, at(189s)) == Counts{{"new", 2}, {"old", 3}});
    CHECK(counts(hot, at(190s)).empty());
    CHECK(hot.report(By::queries, 1, at(190s)).total == 0);
    CHECK(hot.report(By::queries, 1, at(190s)).span == 60s);
  }
  SUBCASE("after a long pause nothing old is left") {
    count(hot, "next", 1, at(190s));
    CHECK(counts(hot, at(190s)) == Counts{{"next", 1}});
    count(hot, "late", 1, at(10h));
    CHECK(counts(hot, at(10h)) == Counts{{"late", 1}});
  }
}

TEST_CASE("hot keys: refusals age as queries do, and a late one counts when it is known") {
  HotKeys hot;
  const HotKeys::Asked asked = hot.count_query(subject(kApi, "k"), at(0s));
  hot.count_refusal(kApi, asked, at(60s));
  CHECK(counts(hot, at(179s), By::refusals).at("k") == 1);
  CHECK(counts(hot, at(180s), By::refusals).empty());
  CHECK(counts(hot, at(120s)).empty());
}

TEST_CASE("hot keys: time that steps back counts for the minute that was reached") {
  HotKeys hot;
  count(hot, "k", 1, at(100s));
  count(hot, "k", 1, at(50s));
  CHECK(counts(hot, at(100s)).at("k") == 2);
  CHECK(hot.report(By::queries, 1, at(50s)).span == 0s);
}

TEST_CASE("hot keys: the bounds hold for the sums of two minutes") {
  std::mt19937_64 random(5);
  HotKeys hot;
  std::map<std::string, std::uint64_t> truth;
  const auto ask = [&](const std::string& key, HotKeys::Time now) {
    hot.count(subject(kApi, key), true, now);
    ++truth[key];
  };
  // Some keys are hot in both minutes, some in one of them; both are flooded by keys that hardly return.
  for (const int minute : {0, 1}) {
    for (int i = 0; i < 60'000; ++i) {
      const std::uint64_t dice = random() % 100;
      const auto now = at(minute * 60s);
      if (dice < 30) {
        ask("both" + std::to_string(random() % 20), now);
      } else if (dice < 50) {
        ask("only" + std::to_string(minute) + "." + std::to_string(random() % 30), now);
      } else {
        ask("rare" + std::to_string(random() % 20'000), now);
      }
    }
  }
  for (const By by : {By::queries, By::refusals}) {
    const auto report = hot.report(by, 10'000, at(119s));
    CHECK(report.total == 120'000);
    CHECK(report.bound <= report.total / HeavyHitters::kCounters);
    std::set<std::string> listed;
    std::uint64_t before = UINT64_MAX;
    for (const HotKeys::Row& row : report.rows) {
      const std::string key(row.key.kept());
      CAPTURE(key);
      CHECK(listed.insert(key).second);
      CHECK(row.count >= truth.at(key));
      CHECK(row.count - row.error <= truth.at(key));
      CHECK(row.error <= report.bound);
      CHECK(row.count <= before);
      before = row.count;
    }
    for (const auto& [key, times] : truth) {
      CAPTURE(key);
      if (times > report.bound) CHECK(listed.contains(key));
    }
    CHECK(report.rows[0].key.kept().substr(0, 4) == "both");
  }
}

}  // namespace
}  // namespace allowd::stats
