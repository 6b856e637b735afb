// SPDX-License-Identifier: MIT
#include "clients/allowctl/output.h"

#include <array>

#include "protocol/value.h"

namespace allowd::allowctl {

Exit exit_code(const client::Problem& problem) {
  switch (problem.kind) {
    case client::Problem::Kind::no_agent: return kNoAgent;
    case client::Problem::Kind::timed_out:
    case client::Problem::Kind::suspended: return kTimedOut;
    case client::Problem::Kind::agent_error:
    case client::Problem::Kind::bad_reply: return kAgentError;
  }
  return kAgentError;
}

std::string to_line(const client::Problem& problem) {
  return problem.code.empty() ? problem.text : problem.code + ": " + problem.text;
}

std::string print_duration(std::uint64_t micros) {
  struct Unit {
    const char* name;
    std::uint64_t length;
  };
  constexpr std::array<Unit, 6> kUnits = {{{"d", 86'400'000'000},
                                           {"h", 3'600'000'000},
                                           {"min", 60'000'000},
                                           {"s", 1'000'000},
                                           {"ms", 1'000},
                                           {"us", 1}}};
  if (micros == 0) return "0 s";
  std::string out;
  int parts = 0;
  for (const Unit& unit : kUnits) {
    const std::uint64_t count = micros / unit.length;
    if (count == 0 && out.empty()) continue;
    micros %= unit.length;
    if (count > 0) out += (out.empty() ? "" : " ") + std::to_string(count) + " " + unit.name;
    if (++parts == 2) break;
  }
  return out;
}

std::string to_line(const client::Decision& decision) {
  const std::string left =
      std::to_string(decision.remaining) + " of " + std::to_string(decision.limit) + " left";
  const std::string from =
      " (" + decision.source + (decision.tier.empty() ? "" : ", tier " + decision.tier) + ")";
  if (decision.allowed) {
    const std::string full =
        decision.reset_after_us > 0 ? ", full in " + print_duration(decision.reset_after_us) : "";
    return "allowed  " + left + full + from;
  }
  const std::string retry =
      decision.retry_after_us < 0
          ? "never: the cost is above the capacity"
          : "retry in " + print_duration(static_cast<std::uint64_t>(decision.retry_after_us));
  return "denied   " + decision.verdict + ", " + left + ", " + retry + from;
}

std::string to_json(const client::Decision& decision) {
  using protocol::Value;
  return Value(Value::Map{{"allowed", decision.allowed},
                          {"limit", decision.limit},
                          {"remaining", decision.remaining},
                          {"retry_after_us", decision.retry_after_us},
                          {"reset_after_us", decision.reset_after_us},
                          {"verdict", decision.verdict},
                          {"source", decision.source},
                          {"tier", decision.tier},
                          {"window_us", decision.window_us},
                          {"more_after_us", decision.more_after_us}})
      .to_json();
}

}  // namespace allowd::allowctl
