// SPDX-License-Identifier: MIT
#include "agent/stats/render.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "protocol/quoted.h"

namespace allowd::stats {
namespace {

using protocol::Source;
using protocol::Value;
using protocol::Verdict;

std::string print(double number) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  return {text, end};
}

Value number_value(double number) {
  const bool is_whole = number == std::floor(number) && std::abs(number) < 9e15;
  return is_whole ? Value(static_cast<std::int64_t>(number)) : Value(number);
}

// Calls `visit(verdict, source, count)` for what was counted; with `from_start` also for what every limit
// will count sooner or later, so that a scraper sees those series begin at 0.
template <class Visit>
void for_each_count(const DecisionCounters& counters, bool from_start, Visit visit) {
  for (std::size_t v = 0; v < protocol::kVerdicts; ++v) {
    for (std::size_t s = 0; s < protocol::kSources; ++s) {
      const auto verdict = static_cast<Verdict>(v);
      const auto source = static_cast<Source>(s);
      const std::uint64_t count = counters.count(verdict, source);
      const bool is_usual =
          source != Source::fallback && (verdict == Verdict::ok || verdict == Verdict::limited);
      if (count > 0 || (from_start && is_usual)) visit(verdict, source, count);
    }
  }
}

// As it stands, or quoted where it could be taken for something else.
std::string part_of_path(const std::string& name) {
  const bool is_plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c > 0x20 && c != 0x7f && c != '"' && c != '/';
  });
  return is_plain ? name : protocol::quoted(name);
}

// How people see limit and tier: "api", "api/overflow".
std::string path_of(const DecisionCounters& counters) {
  const std::string limit = part_of_path(counters.limit());
  return counters.tier().empty() ? limit : limit + "/" + part_of_path(counters.tier());
}

constexpr std::array kAllSources = {Source::local, Source::store, Source::fallback};

// Prometheus label values escape backslash, quote and newline.
std::string label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    c == '\n' ? out += "\\n" : out += c;
  }
  return out;
}

void add_header(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out.append("# HELP allowd_").append(name).append(" ").append(help);
  out.append("\n# TYPE allowd_").append(name).append(" ").append(type).append("\n");
}

void add_latency(std::string& out, const Registry& registry) {
  constexpr unsigned kFirstPower = 4, kLastPower = 20;  // 16 µs to 1 s
  add_header(out, "decision_seconds", "histogram", "Time from reading a query to answering it.");
  for (const Source source : kAllSources) {
    const Histogram& histogram = registry.latency(source);
    const std::string labels = "source=\"" + std::string(name_of(source)) + "\"";
    for (unsigned power = kFirstPower; power <= kLastPower; ++power) {
      const double edge =
          static_cast<double>((std::uint64_t{1} << power) - 1) / 1e6;  // `le` includes its edge
      out += "allowd_decision_seconds_bucket{" + labels + ",le=\"" + print(edge) + "\"} " +
             std::to_string(histogram.count_below_power(power)) + "\n";
    }
    out += "allowd_decision_seconds_bucket{" + labels + ",le=\"+Inf\"} " + std::to_string(histogram.count()) +
           "\n";
    out += "allowd_decision_seconds_sum{" + labels + "} " +
           print(static_cast<double>(histogram.sum()) / 1e6) + "\n";
    out += "allowd_decision_seconds_count{" + labels + "} " + std::to_string(histogram.count()) + "\n";
  }
}

Value latency_value(const Histogram& histogram) {
  return Value::Map{{"count", histogram.count()},         {"p50", histogram.quantile(0.5)},
                    {"p90", histogram.quantile(0.9)},     {"p99", histogram.quantile(0.99)},
                    {"p99_9", histogram.quantile(0.999)}, {"max", histogram.max()}};
}

}  // namespace

Value to_value(const Registry& registry) {
  Value::Map decisions;
  for (const DecisionCounters& counters : registry.decisions()) {
    Value::Map counts;
    for_each_count(counters, false, [&](Verdict verdict, Source source, std::uint64_t count) {
      counts.emplace_back(std::string(name_of(verdict)) + "/" + std::string(name_of(source)), count);
    });
    if (!counts.empty()) decisions.emplace_back(path_of(counters), std::move(counts));
  }
  Value::Map latency;
  for (const Source source : kAllSources) {
    const Histogram& histogram = registry.latency(source);
    if (histogram.count() > 0) latency.emplace_back(std::string(name_of(source)), latency_value(histogram));
  }
  Value::Map all{{"decisions", std::move(decisions)}, {"latency_us", std::move(latency)}};
  for (const Metric& metric : registry.metrics()) all.emplace_back(metric.name, number_value(metric.value));
  return all;
}

std::string to_prometheus(const Registry& registry, std::string_view version) {
  std::string out;
  add_header(out, "build_info", "gauge", "The agent's version, always 1.");
  out += "allowd_build_info{version=\"" + label(version) + "\"} 1\n";
  add_header(out, "decisions_total", "counter", "Decisions, by limit, tier, verdict and who decided.");
  for (const DecisionCounters& counters : registry.decisions()) {
    for_each_count(
        counters, counters.tier().empty(), [&](Verdict verdict, Source source, std::uint64_t count) {
          out += "allowd_decisions_total{limit=\"" + label(counters.limit()) + "\",tier=\"" +
                 label(counters.tier()) + "\",verdict=\"" + std::string(name_of(verdict)) + "\",source=\"" +
                 std::string(name_of(source)) + "\"} " + std::to_string(count) + "\n";
        });
  }
  add_latency(out, registry);
  for (const Metric& metric : registry.metrics()) {
    add_header(out, metric.name, metric.kind == Metric::Kind::counter ? "counter" : "gauge", metric.help);
    out += "allowd_" + metric.name + " " + print(metric.value) + "\n";
  }
  return out;
}

std::string top_to_text(const HotKeys& hot_keys, std::size_t rows, HotKeys::Time now) {
  const auto name = [](const KeptName& kept) {
    return protocol::quoted(kept.kept()) + (kept.is_cut() ? "..." : "");
  };
  std::string out;
  for (const HotKeys::By by : {HotKeys::By::queries, HotKeys::By::refusals}) {
    const HotKeys::Report report = hot_keys.report(by, rows, now);
    const std::string what = by == HotKeys::By::queries ? "queries" : "refusals";
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(report.span).count();
    out += "# " + what + " error limit key (" + std::to_string(report.total) + " " + what + " in " +
           std::to_string(seconds) + " s; no error is above " + std::to_string(report.bound) + ")\n";
    for (const HotKeys::Row& row : report.rows) {
      out += std::to_string(row.count) + " " + std::to_string(row.error) + " " + name(row.limit) + " " +
             name(row.key) + "\n";
    }
  }
  return out;
}

std::string to_text(const Registry& registry) {
  std::string out;
  for (const DecisionCounters& counters : registry.decisions()) {
    for_each_count(counters, false, [&](Verdict verdict, Source source, std::uint64_t count) {
      out += "decisions " + path_of(counters) + " " + std::string(name_of(verdict)) + " " +
             std::string(name_of(source)) + " " + std::to_string(count) + "\n";
    });
  }
  for (const Source source : kAllSources) {
    const Histogram& histogram = registry.latency(source);
    if (histogram.count() == 0) continue;
    const std::string name = "latency_us " + std::string(name_of(source));
    out += name + " count " + std::to_string(histogram.count()) + " p50 " +
           std::to_string(histogram.quantile(0.5)) + " p99 " + std::to_string(histogram.quantile(0.99)) +
           " max " + std::to_string(histogram.max()) + "\n";
  }
  for (const Metric& metric : registry.metrics()) out += metric.name + " " + print(metric.value) + "\n";
  return out;
}

}  // namespace allowd::stats
