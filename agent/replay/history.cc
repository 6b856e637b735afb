// SPDX-License-Identifier: MIT
#include "agent/replay/history.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "protocol/caps.h"

namespace allowd::replay {
namespace {

using nlohmann::ordered_json;

Error bad(std::string message) { return {Error::Code::bad_request, std::move(message)}; }

// A limit's JSON table as the TOML that the config reads. Scalars are written alike in both.
void write_value(std::ostream& out, const ordered_json& value) {
  if (value.is_array()) {
    out << "[";
    for (const ordered_json& element : value) {
      write_value(out, element);
      out << ",";
    }
    out << "]";
  } else if (value.is_object()) {
    const char* before = "{ ";
    for (const auto& [name, element] : value.items()) {
      out << std::exchange(before, ", ") << ordered_json(name).dump() << " = ";
      write_value(out, element);
    }
    out << (value.empty() ? "{}" : " }");
  } else {
    out << value.dump();
  }
}

std::string to_toml(const ordered_json& table) {
  std::ostringstream out;
  for (const auto& [name, value] : table.items()) {
    out << ordered_json(name).dump() << " = ";
    write_value(out, value);
    out << "\n";
  }
  return out.str();
}

std::optional<limiter::Operation> operation_of(const std::string& name) {
  if (name == "allow") return limiter::Operation::take;
  if (name == "peek") return limiter::Operation::peek;
  if (name == "refund") return limiter::Operation::refund;
  if (name == "force") return limiter::Operation::force;
  return std::nullopt;
}

Failure read_query(Step& step) {
  const ordered_json& line = step.line;
  const auto time = line.find("t");
  constexpr std::int64_t kLatest = std::int64_t{1} << 53;
  if (time == line.end() || !time->is_number_integer() || time->get<std::int64_t>() < 0 ||
      time->get<std::int64_t>() > kLatest) {
    return bad("\"t\" must be an integer of microseconds from 0 to 2^53");
  }
  step.at = limiter::TimePoint{limiter::Micros{time->get<std::int64_t>()}};
  const auto key = line.find("key");
  if (key == line.end() || !key->is_string()) return bad("\"key\" must be a string");
  step.key = key->get<std::string>();
  if (step.key.size() > protocol::kMaxKeyBytes) return bad("\"key\" is over 1024 bytes");
  if (const auto cost = line.find("cost"); cost != line.end()) {
    if (!cost->is_number_integer() || cost->get<std::int64_t>() < 0) {
      return bad("\"cost\" must be an integer of at least 0");
    }
    step.cost = cost->get<std::int64_t>();
  }
  return {};
}

}  // namespace

Result<Step> read_step(std::string_view text, const std::string& limit_name) {
  Step step;
  step.line = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!step.line.is_object()) return bad("is not a JSON object");
  std::string op = "allow";
  if (const auto named = step.line.find("op"); named != step.line.end()) {
    if (!named->is_string()) return bad("\"op\" must be a string");
    op = named->get<std::string>();
  }
  if (op == "limit") {
    const auto table = step.line.find("limit");
    if (table == step.line.end() || !table->is_object()) return bad("op limit needs a \"limit\" table");
    auto limit = config::parse_limit(to_toml(*table), limit_name);
    if (!limit) return std::move(limit.error());
    step.new_limit = std::move(*limit);
    return step;
  }
  const auto operation = operation_of(op);
  if (!operation) return bad("\"op\" must be allow, peek, refund, force or limit");
  step.operation = *operation;
  if (auto problem = read_query(step)) return std::move(*problem);
  return step;
}

void add_decision(ordered_json& line, const limiter::Decision& decision, std::string_view tier,
                  std::string_view source) {
  line["allowed"] = is_allowed(decision);
  line["limit"] = decision.capacity;
  line["remaining"] = decision.remaining;
  line["retry_after_us"] = decision.retry_after.count();
  line["reset_after_us"] = decision.reset_after.count();
  line["verdict"] = name_of(decision.verdict);
  line["source"] = source;
  line["tier"] = tier;
  line["window_us"] = decision.window.count();
  line["more_after_us"] = decision.more_after.count();
}

}  // namespace allowd::replay
