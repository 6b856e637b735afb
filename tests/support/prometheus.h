// SPDX-License-Identifier: MIT
//
// Reads Prometheus's text format 0.0.4, strictly, and complains about what a server would not take or would
// take for something else.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace allowd::testing {

class PrometheusText {
 public:
  explicit PrometheusText(std::string_view text) {
    if (!text.ends_with('\n')) complain("the last line is not ended", text);
    while (!text.empty() && problem_.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      read_line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  // Empty when all is well.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  // By name and labels as written, such as `allowd_up{source="local"}`.
  [[nodiscard]] const std::map<std::string, double>& samples() const { return samples_; }
  [[nodiscard]] const std::map<std::string, std::string>& types() const { return types_; }

 private:
  void complain(std::string_view what, std::string_view line) {
    if (problem_.empty()) problem_ = std::string(what) + ": " + std::string(line);
  }

  static bool is_name(std::string_view name) {
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front())) != 0) return false;
    for (const char c : name)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != ':') return false;
    return true;
  }

  void read_line(std::string_view line) {
    if (line.empty()) return complain("an empty line", line);
    if (line.starts_with("# HELP ")) return read_header(line, line.substr(7), helps_);
    if (line.starts_with("# TYPE ")) return read_header(line, line.substr(7), types_);
    if (line.starts_with("#")) return complain("a comment that is neither HELP nor TYPE", line);
    read_sample(line);
  }

  void read_header(std::string_view line, std::string_view rest,
                   std::map<std::string, std::string>& headers) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) return complain("a header without a text", line);
    const std::string name(rest.substr(0, space));
    if (!is_name(name)) return complain("a bad name", line);
    if (!headers.emplace(name, rest.substr(space + 1)).second)
      return complain("a header that stands twice", line);
    if (samples_of_.contains(name)) complain("a header behind its samples", line);
    family_ = name;
  }

  void read_sample(std::string_view line) {
    const std::size_t name_end = line.find_first_of("{ ");
    if (name_end == std::string_view::npos) return complain("a sample without a value", line);
    const std::string name(line.substr(0, name_end));
    if (!is_name(name)) return complain("a bad name", line);
    std::size_t at = name_end;
    if (line[at] == '{' && !skip_labels(line, at)) return complain("bad labels", line);
    if (at >= line.size() || line[at] != ' ') return complain("no blank before the value", line);
    const std::string value(line.substr(at + 1));
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || value.find(' ') != std::string::npos)
      return complain("a bad value", line);
    if (!samples_.emplace(std::string(line.substr(0, at)), number).second)
      return complain("a series twice", line);
    check_family(line, name);
  }

  // Moves `at` behind the closing brace.
  static bool skip_labels(std::string_view line, std::size_t& at) {
    std::set<std::string_view> names;
    while (true) {
      const std::size_t equals = line.find("=\"", ++at);
      if (equals == std::string_view::npos) return false;
      const std::string_view name = line.substr(at, equals - at);
      if (!is_name(name) || !names.insert(name).second) return false;
      for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
        if (line[at] != '\\') continue;
        ++at;
        if (at >= line.size() || (line[at] != '\\' && line[at] != '"' && line[at] != 'n')) return false;
      }
      ++at;  // behind the quote
      if (at >= line.size()) return false;
      if (line[at] == ',') continue;
      if (line[at] != '}') return false;
      ++at;
      return true;
    }
  }

  void check_family(std::string_view line, const std::string& name) {
    const bool is_histogram = types_[family_] == "histogram";
    bool is_member = name == family_ && !is_histogram;
    for (const char* suffix : {"_bucket", "_sum", "_count"})
      is_member = is_member || (is_histogram && name == family_ + suffix);
    if (!is_member) return complain("a sample outside its family", line);
    if (!helps_.contains(family_)) return complain("no HELP", line);
    const bool is_total = family_.ends_with("_total");
    if (types_[family_] == "counter" && !is_total)
      return complain("a counter whose name does not end in _total", line);
    if (types_[family_] == "gauge" && is_total) return complain("a gauge that is named like a counter", line);
    samples_of_.insert(family_);
  }

  std::string problem_;
  std::string family_;
  std::map<std::string, std::string> helps_;
  std::map<std::string, std::string> types_;
  std::map<std::string, double> samples_;
  std::set<std::string> samples_of_;
};

}  // namespace allowd::testing
