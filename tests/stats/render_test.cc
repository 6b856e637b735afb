// SPDX-License-Identifier: MIT
#include "agent/stats/render.h"

#include <string>
#include <vector>

#include "tests/support/printing.h"
#include "tests/support/prometheus.h"

namespace allowd::stats {
namespace {

using protocol::Source;
using protocol::Value;
using protocol::Verdict;
using testing::PrometheusText;

class FixedMetrics final : public MetricSource {
 public:
  explicit FixedMetrics(std::vector<Metric> metrics) : metrics_(std::move(metrics)) {}
  void collect(std::vector<Metric>& all) const override {
    all.insert(all.end(), metrics_.begin(), metrics_.end());
  }

 private:
  std::vector<Metric> metrics_;
};

const FixedMetrics kMetrics({{"connections", Metric::Kind::gauge, "Clients.", 3},
                             {"requests_total", Metric::Kind::counter, "Requests.", 12'345'678'901},
                             {"clock_uncertainty_seconds", Metric::Kind::gauge, "Error.", 0.000125}});

TEST_CASE("registry: counters are made on first use and found again") {
  Registry registry;
  DecisionCounters& api = registry.decisions_of("api", "");
  DecisionCounters& overflow = registry.decisions_of("api", "overflow");
  CHECK(&api != &overflow);
  for (int i = 0; i < 1000; ++i) static_cast<void>(registry.decisions_of(std::to_string(i), ""));
  CHECK(&registry.decisions_of("api", "") == &api);  // where they are does not change
  api.add(Verdict::limited, Source::store);
  api.add(Verdict::limited, Source::store);
  CHECK(api.count(Verdict::limited, Source::store) == 2);
  CHECK(api.count(Verdict::limited, Source::local) == 0);
  CHECK(overflow.count(Verdict::limited, Source::store) == 0);
  CHECK(registry.decisions().size() == 1002);
}

TEST_CASE("registry: metrics are what the sources say at this moment, in the order of registration") {
  Registry registry;
  const FixedMetrics more({{"more", Metric::Kind::gauge, "More.", 1}});
  registry.add_source(kMetrics);
  registry.add_source(more);
  std::vector<std::string> names;
  for (const Metric& metric : registry.metrics()) names.push_back(metric.name);
  CHECK(names ==
        std::vector<std::string>{"connections", "requests_total", "clock_uncertainty_seconds", "more"});
}

TEST_CASE("render: a tree of what was counted, without what never happened") {
  Registry registry;
  registry.add_source(kMetrics);
  static_cast<void>(registry.decisions_of("idle", ""));
  registry.decisions_of("api", "").add(Verdict::ok, Source::local);
  registry.decisions_of("api", "").add(Verdict::limited, Source::local);
  registry.decisions_of("api", "").add(Verdict::limited, Source::local);
  registry.decisions_of("api", "overflow").add(Verdict::ok, Source::local);
  registry.latency(Source::local).record(7, 3);
  CHECK(to_value(registry).to_json() ==
        R"({"decisions": {"api": {"ok/local": 1, "limited/local": 2}, "api/overflow": {"ok/local": 1}}, )"
        R"("latency_us": {"local": {"count": 3, "p50": 7, "p90": 7, "p99": 7, "p99_9": 7, "max": 7}}, )"
        R"("connections": 3, "requests_total": 12345678901, "clock_uncertainty_seconds": 0.000125})");
}

TEST_CASE("render: text has one line for each number and none that is empty") {
  Registry registry;
  registry.add_source(kMetrics);
  registry.decisions_of("api", "").add(Verdict::never, Source::store);
  registry.decisions_of("api", "overflow").add(Verdict::ok, Source::local);
  registry.latency(Source::fallback).record(5);
  CHECK(to_text(registry) ==
        "decisions api never store 1\n"
        "decisions api/overflow ok local 1\n"
        "latency_us fallback count 1 p50 5 p99 5 max 5\n"
        "connections 3\n"
        "requests_total 12345678901\n"
        "clock_uncertainty_seconds 0.000125\n");
  CHECK(to_text(Registry()).empty());
}

TEST_CASE("render: names that could be taken for others are quoted, and no others") {
  Registry registry;
  for (const auto& [limit, tier] : std::vector<std::pair<std::string, std::string>>{{"a", "overflow"},
                                                                                    {"a/overflow", ""},
                                                                                    {"a b", "per day"},
                                                                                    {"a b/per", "day"},
                                                                                    {"\"q\"", ""},
                                                                                    {"caf\xc3\xa9.x", "s"}}) {
    registry.decisions_of(limit, tier).add(Verdict::ok, Source::local);
  }
  CHECK(to_text(registry) ==
        "decisions a/overflow ok local 1\n"
        "decisions \"a/overflow\" ok local 1\n"
        "decisions \"a b\"/\"per day\" ok local 1\n"
        "decisions \"a b/per\"/day ok local 1\n"
        "decisions \"\\\"q\\\"\" ok local 1\n"
        "decisions caf\xc3\xa9.x/s ok local 1\n");
  const std::string json = to_value(registry).to_json();
  CHECK(json.find(R"("a/overflow": {"ok/local": 1}, "\"a/overflow\"": {"ok/local": 1}, )") !=
        std::string::npos);
}

TEST_CASE("render: the reader of Prometheus's text that these tests use sees what is wrong") {
  const std::string head = "# HELP a_total A.\n# TYPE a_total counter\n";
  CHECK(PrometheusText(head + "a_total{x=\"1\"} 1\n").problem().empty());
  for (const std::string& text :
       {head + head, head + "a_total 1\na_total 2\n", head + "b_total 1\n", head + "a_total\n",
        head + "a_total 1", head + "\na_total 1\n", head + "a_total{x=\"a\"b\"} 1\n",
        head + "a_total{x=\"\\t\"} 1\n", std::string("# HELP a A.\n# TYPE a counter\na 1\n"),
        std::string("# TYPE a gauge\na 1\n")}) {
    CAPTURE(text);
    CHECK_FALSE(PrometheusText(text).problem().empty());
  }
}

TEST_CASE("render: Prometheus's text is well-formed, from the first moment on") {
  Registry registry;
  registry.add_source(kMetrics);
  const PrometheusText empty(to_prometheus(registry, "0.1.0"));
  CHECK(empty.problem().empty());
  CHECK(empty.samples().at("allowd_build_info{version=\"0.1.0\"}") == 1);
  CHECK(empty.samples().at("allowd_connections") == 3);
  CHECK(empty.samples().at("allowd_requests_total") == 12'345'678'901);
  CHECK(empty.samples().at("allowd_clock_uncertainty_seconds") == 0.000125);
  CHECK(empty.types().at("allowd_requests_total") == "counter");
  CHECK(empty.types().at("allowd_connections") == "gauge");
  CHECK(empty.types().at("allowd_decision_seconds") == "histogram");

  for (int v = 0; v < static_cast<int>(protocol::kVerdicts); ++v) {
    for (int s = 0; s < static_cast<int>(protocol::kSources); ++s) {
      registry.decisions_of("api", "").add(static_cast<Verdict>(v), static_cast<Source>(s));
      registry.decisions_of("api", "overflow").add(static_cast<Verdict>(v), static_cast<Source>(s));
      registry.decisions_of("other", "").add(static_cast<Verdict>(v), static_cast<Source>(s));
    }
  }
  const PrometheusText full(to_prometheus(registry, "0.1.0"));
  CHECK(full.problem().empty());
  CHECK(full.samples().at(
            R"(allowd_decisions_total{limit="api",tier="",verdict="shadow",source="fallback"})") == 1);
  CHECK(full.samples().at(
            R"(allowd_decisions_total{limit="api",tier="overflow",verdict="ok",source="local"})") == 1);
}

TEST_CASE("render: Prometheus sees the usual series of every limit begin at 0") {
  Registry registry;
  static_cast<void>(registry.decisions_of("api", ""));
  static_cast<void>(registry.decisions_of("api", "overflow"));
  const PrometheusText text(to_prometheus(registry, "1"));
  REQUIRE(text.problem().empty());
  for (const char* verdict : {"ok", "limited"}) {
    for (const char* source : {"local", "store"}) {
      const std::string series = R"(allowd_decisions_total{limit="api",tier="",verdict=")" +
                                 std::string(verdict) + R"(",source=")" + std::string(source) + "\"}";
      CAPTURE(series);
      REQUIRE(text.samples().contains(series));
      CHECK(text.samples().at(series) == 0);
    }
  }
  CHECK_FALSE(text.samples().contains(
      R"(allowd_decisions_total{limit="api",tier="",verdict="ok",source="fallback"})"));
}

TEST_CASE("render: Prometheus's text escapes what a limit's name may contain") {
  Registry registry;
  registry.decisions_of(R"(a"b\c)", "").add(Verdict::ok, Source::local);
  registry.decisions_of("line\nbreak", "").add(Verdict::ok, Source::local);
  registry.decisions_of("é {x=\"1\"} #", "").add(Verdict::ok, Source::local);
  const PrometheusText text(to_prometheus(registry, "1\"2\\"));
  CHECK(text.problem().empty());
  CHECK(text.samples().contains(
      R"(allowd_decisions_total{limit="a\"b\\c",tier="",verdict="ok",source="local"})"));
  CHECK(text.samples().contains(
      R"(allowd_decisions_total{limit="line\nbreak",tier="",verdict="ok",source="local"})"));
  CHECK(text.samples().contains(R"(allowd_build_info{version="1\"2\\"})"));
}

TEST_CASE("render: latency buckets are cumulative and end with all values") {
  Registry registry;
  Histogram& histogram = registry.latency(Source::store);
  for (const std::int64_t micros : {1, 15, 16, 17, 900, 1023, 1024, 5'000'000}) histogram.record(micros);
  const PrometheusText text(to_prometheus(registry, "1"));
  REQUIRE(text.problem().empty());
  const auto sample = [&](const std::string& name) { return text.samples().at(name); };
  const auto bucket = [&](const std::string& edge) {
    return sample(R"(allowd_decision_seconds_bucket{source="store",le=")" + edge + "\"}");
  };
  CHECK(bucket("1.5e-05") == 2);  // up to 15 µs, the edge included
  CHECK(bucket("3.1e-05") == 4);
  CHECK(bucket("0.001023") == 6);
  CHECK(bucket("0.002047") == 7);
  CHECK(bucket("+Inf") == 8);
  CHECK(sample(R"(allowd_decision_seconds_count{source="store"})") == 8);
  CHECK(sample(R"(allowd_decision_seconds_sum{source="store"})") == doctest::Approx(5.002996));
  double before = 0;
  for (unsigned power = 4; power <= 20; ++power) {
    const double now = static_cast<double>(histogram.count_below_power(power));
    CHECK(now >= before);
    before = now;
  }
  CHECK(before <= bucket("+Inf"));
}

}  // namespace
}  // namespace allowd::stats
