// SPDX-License-Identifier: MIT

#include "report.h"

#include <array>
#include <cstdio>

namespace allowd::bench {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

std::string number(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.3f", value);
  return text.data();
}

double in_microseconds(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e3; }

double per(double value, std::uint64_t count) { return count == 0 ? 0 : value / static_cast<double>(count); }

std::string octaves_as_json(const LatencyHistogram& latency) {
  std::string text;
  for (const LatencyHistogram::Octave& octave : latency.octaves()) {
    text += text.empty() ? "[[" : ", [";
    text += number(in_microseconds(octave.below)) + ", " + std::to_string(octave.count) + "]";
  }
  return text.empty() ? "[]" : text + "]";
}

Fields fields_of(const Report& report) {
  const LoopFigures& figures = report.figures;
  const double seconds = std::chrono::duration<double>(figures.measured).count();
  const auto quantile = [&](double share) {
    return number(in_microseconds(figures.latency.quantile(share)));
  };
  Fields fields = {
      {"connections", std::to_string(report.plan.connections)},
      {"depth", std::to_string(report.plan.depth)},
      {"keys", std::to_string(report.keys)},
      {"queries", std::to_string(figures.queries)},
      {"seconds", number(seconds)},
      {"rate", number(seconds > 0 ? static_cast<double>(figures.queries) / seconds : 0)},
      {"p50_us", quantile(0.5)},
      {"p90_us", quantile(0.9)},
      {"p99_us", quantile(0.99)},
      {"p999_us", quantile(0.999)},
      {"max_us", number(in_microseconds(figures.latency.max()))},
      {"own_cpu_us_per_query", number(per(in_microseconds(figures.own_cpu), figures.queries))},
      {"total_queries", std::to_string(figures.total_queries)},
      {"error_replies", std::to_string(figures.error_replies)},
      {"allowed", std::to_string(figures.allowed)},
      {"total_allowed", std::to_string(figures.total_allowed)},
  };
  fields.insert(fields.end(), report.more.begin(), report.more.end());
  return fields;
}

void print_histogram(const LatencyHistogram& latency) {
  std::printf("latency histogram:\n");
  for (const LatencyHistogram::Octave& octave : latency.octaves()) {
    std::printf("  < %10.0f us  %12llu\n", in_microseconds(octave.below),
                static_cast<unsigned long long>(octave.count));
  }
}

}  // namespace

void print_report(const Report& report, bool as_json) {
  Fields fields = fields_of(report);
  if (as_json) {
    fields.emplace_back("histogram", octaves_as_json(report.figures.latency));
    std::string text;
    for (const auto& [name, value] : fields) {
      text += (text.empty() ? "{\"" : ", \"") + name + "\": " + value;
    }
    std::printf("%s}\n", text.c_str());
    return;
  }
  for (const auto& [name, value] : fields) {
    std::printf("%-22s %s\n", name.c_str(), value.c_str());
  }
  if (report.with_histogram) {
    print_histogram(report.figures.latency);
  }
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<std::size_t>(byte >> 4)];
    text += kDigits[static_cast<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace allowd::bench
