// SPDX-License-Identifier: MIT
#include "agent/config/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <sstream>

#include "agent/config/config_table.h"
#include "agent/config/units.h"
#include "agent/limiter/share.h"

namespace allowd::config {
namespace {

constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxPathBytes = 107;  // sockaddr_un, less its terminator

constexpr std::string_view kNameRule = "must have 1 to 128 bytes and no control characters";

// Of limits, tiers and plans, whoever gives them: names stand in logs and reports, a line each.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
}

void check_path(const Table& table, std::string_view name, std::string_view path) {
  if (path.empty()) table.fail(name, "must not be empty");
  if (path.size() > kMaxPathBytes) {
    table.fail(name, "is " + std::to_string(path.size()) + " bytes long; a socket's path may have 107");
  }
  if (path.find('\0') != std::string_view::npos) table.fail(name, "must not contain a NUL");
}

AgentConfig read_agent(const Table& table) {
  constexpr std::array<std::string_view, 8> kKnown = {"socket",       "socket_mode",     "socket_group",
                                                      "admin_socket", "max_connections", "max_keys",
                                                      "deadline",     "shadow"};
  table.allow_only(kKnown);
  AgentConfig agent;
  if (const auto path = table.text("socket")) {
    check_path(table, "socket", *path);
    agent.socket = *path;
  }
  if (const auto path = table.text("admin_socket")) {
    check_path(table, "admin_socket", *path);
    agent.admin_socket = *path;
  }
  if (const auto mode = table.text("socket_mode")) {
    const bool is_octal =
        mode->size() >= 3 && mode->size() <= 4 && mode->find_first_not_of("01234567") == std::string::npos;
    const unsigned long value = is_octal ? std::stoul(*mode, nullptr, 8) : 0;
    if (!is_octal || value > 0777)
      table.fail("socket_mode", "must be an octal mode in a string, like \"0660\"");
    agent.socket_mode = static_cast<std::uint32_t>(value);
  }
  if (const auto group = table.text("socket_group")) {
    if (group->empty()) table.fail("socket_group", "must not be empty");
    agent.socket_group = *group;
  }
  agent.max_connections = table.integer("max_connections", 1, 1'000'000).value_or(agent.max_connections);
  agent.max_keys = table.integer("max_keys", 1, 1'000'000'000).value_or(agent.max_keys);
  agent.deadline = table.duration("deadline").value_or(agent.deadline);
  agent.shadow = table.boolean("shadow").value_or(false);
  return agent;
}

PrefilterConfig read_prefilter(const Table& table) {
  constexpr std::array<std::string_view, 2> kKnown = {"trust", "hold"};
  constexpr limiter::Micros kMost = std::chrono::minutes(1);
  table.allow_only(kKnown);
  PrefilterConfig prefilter;
  prefilter.trust = table.duration("trust").value_or(prefilter.trust);
  if (prefilter.trust > kMost) table.fail("trust", "must be at most 1m");
  prefilter.hold = table.duration("hold").value_or(std::min(prefilter.hold, prefilter.trust));
  if (prefilter.hold > prefilter.trust) table.fail("hold", "must not be longer than trust");
  return prefilter;
}

FailurePolicy read_policy(const Table& table) {
  const auto policy = table.text("on_failure");
  if (!policy || *policy == "allow") return FailurePolicy::allow;
  if (*policy == "deny") return FailurePolicy::deny;
  if (*policy == "local") return FailurePolicy::local;
  table.fail("on_failure", "must be \"allow\", \"deny\" or \"local\"");
}

// What makes up a definition, of a limit, a tier, an override.
constexpr std::array<std::string_view, 4> kRateKeys = {"rate", "burst", "algorithm", "align"};

// The same from a file and from an application; `fail(key, reason)` throws.
template <class Fail>
limiter::Algorithm make_algorithm(const InlineRate& text, Fail fail) {
  auto rate = parse_rate(text.rate);
  if (!rate) fail("rate", rate.error().message);
  const auto made = [&](auto rules, std::string_view blamed = "rate") -> limiter::Algorithm {
    if (!rules) fail(blamed, rules.error().message);
    return *rules;
  };
  const std::string_view name = text.algorithm.empty() ? "token_bucket" : text.algorithm;
  if (!text.align.empty() && name != "fixed_window") fail("align", "is for fixed_window only");
  if (name == "token_bucket") {
    const std::int64_t burst = text.burst.value_or(rate->count);
    return made(limiter::TokenBucket::make(*rate, burst), text.burst ? "burst" : "rate");
  }
  if (text.burst) fail("burst", "is for token_bucket only; a window holds its rate's count");
  if (name == "fixed_window") {
    using Align = limiter::FixedWindow::Align;
    const std::string_view align = text.align.empty() ? "first" : text.align;
    if (align != "first" && align != "clock") fail("align", "must be \"first\" or \"clock\"");
    return made(limiter::FixedWindow::make(*rate, align == "clock" ? Align::clock : Align::first));
  }
  if (name == "sliding_window") return made(limiter::SlidingWindow::make(*rate));
  if (name == "sliding_log") return made(limiter::SlidingLog::make(*rate));
  if (name == "counter") return made(limiter::Counter::make(*rate));
  constexpr std::array<std::string_view, 5> kNames = {"token_bucket", "fixed_window", "sliding_window",
                                                      "sliding_log", "counter"};
  fail("algorithm",
       "must be token_bucket, fixed_window, sliding_window, sliding_log or counter" + nearest(name, kNames));
  return made(limiter::Counter::make(*rate));  // never reached: `fail` throws
}

limiter::Algorithm read_algorithm(const Table& table) {
  const auto rate = table.text("rate");
  if (!rate) table.fail("rate is missing");
  const std::string algorithm = table.text("algorithm").value_or("token_bucket");
  const std::string align = table.text("align").value_or("");
  if (table.has("align") && align.empty()) table.fail("align", "must be \"first\" or \"clock\"");
  const InlineRate text{"", *rate, algorithm, align, table.integer("burst", 1, limiter::kMaxUsed)};
  return make_algorithm(
      text, [&](std::string_view key, std::string reason) { table.fail(key, std::move(reason)); });
}

limiter::Tier read_tier(const Table& table) {
  constexpr std::array<std::string_view, 6> kKnown = {"name",      "rate",  "burst",
                                                      "algorithm", "align", "shadow"};
  table.allow_only(kKnown);
  const auto name = table.text("name");
  if (!name) table.fail("name is missing");
  if (!is_name(*name)) table.fail("name", std::string(kNameRule));
  return {*name, read_algorithm(table), table.boolean("shadow").value_or(false)};
}

// The definition that stands in `table`, beside whatever else its owner allows there.
limiter::DefinitionPtr read_definition(const Table& table, bool shadow) {
  std::vector<limiter::Tier> tiers;
  if (table.has("tiers")) {
    for (const std::string_view key : kRateKeys) {
      if (table.has(key)) table.fail(key, "cannot stand beside tiers: each tier has its own");
    }
    for (const Table& tier : table.tables("tiers")) tiers.push_back(read_tier(tier));
  } else {
    tiers.push_back({"", read_algorithm(table), false});
  }
  auto definition = limiter::Definition::make(std::move(tiers), shadow);
  if (!definition) table.fail(table.has("tiers") ? "tiers" : "algorithm", definition.error().message);
  return *definition;
}

Override read_override(const Table& table, const std::string& pattern, bool shadow) {
  constexpr std::array<std::string_view, 8> kKnown = {"rate",  "burst",  "algorithm", "align",
                                                      "tiers", "shadow", "unlimited", "deny"};
  table.allow_only(kKnown);
  Override result;
  result.is_prefix = !pattern.empty() && pattern.back() == '*';
  result.key = result.is_prefix ? pattern.substr(0, pattern.size() - 1) : pattern;
  if (result.key.find('*') != std::string::npos) table.fail("a star may stand at the end only");
  for (const auto& [name, kind] :
       {std::pair{"unlimited", Override::Kind::unlimited}, {"deny", Override::Kind::deny}}) {
    if (!table.has(name)) continue;
    if (!*table.boolean(name)) table.fail(name, "may only be true");
    if (table.names().size() > 1) table.fail(name, "stands alone");
    result.kind = kind;
    return result;
  }
  result.definition = read_definition(table, table.boolean("shadow").value_or(shadow));
  return result;
}

// Whether the same state can be read under both.
bool share_state(const limiter::Definition& a, const limiter::Definition& b) {
  if (a.state_kind() != b.state_kind() || a.tiers().size() != b.tiers().size()) return false;
  return std::equal(a.tiers().begin(), a.tiers().end(), b.tiers().begin(),
                    [](const auto& x, const auto& y) { return x.identity() == y.identity(); });
}

Plan read_plan(const Table& table, std::string name, const limiter::Definition& base) {
  constexpr std::array<std::string_view, 5> kKnown = {"rate", "burst", "algorithm", "align", "tiers"};
  table.allow_only(kKnown);
  Plan plan{std::move(name), read_definition(table, base.is_shadow())};
  if (!share_state(base, *plan.definition)) {
    table.fail(
        "must have the limit's own algorithm, windows and tiers: a plan changes numbers, the state is the "
        "same");
  }
  return plan;
}

limiter::DefinitionPtr read_overflow(const Table& table, bool shadow) {
  constexpr std::array<std::string_view, 2> kKnown = {"rate", "burst"};
  table.allow_only(kKnown);
  return read_definition(table, shadow);
}

void read_overrides(const Table& table, LimitConfig& limit) {
  for (const std::string& pattern : table.names()) {
    limit.overrides.push_back(read_override(*table.table(pattern), pattern, limit.definition->is_shadow()));
  }
  // An exact key is longer than any prefix of it.
  std::stable_sort(limit.overrides.begin(), limit.overrides.end(), [](const Override& a, const Override& b) {
    return std::pair(a.key.size(), !a.is_prefix) > std::pair(b.key.size(), !b.is_prefix);
  });
}

LeaseSize read_lease(const Table& table, const limiter::Definition& definition) {
  if (!table.has("lease")) return {};
  if (definition.shape() != limiter::Definition::Shape::bucket)
    table.fail("lease", "is for a token_bucket without tiers");
  LeaseSize lease;
  if (!table.is_text("lease")) {
    lease.amount = *table.integer("lease", 1, limiter::kMaxUsed);
    return lease;
  }
  const std::string text = *table.text("lease");
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), lease.amount);
  const bool is_percent = problem == std::errc() && std::string_view(end) == "%";
  if (!is_percent || lease.amount < 1 || lease.amount > 100)
    table.fail("lease", "must be a number of permits, or a part of the burst from \"1%\" to \"100%\"");
  lease.is_percent = true;
  return lease;
}

std::int64_t read_local_share(const Table& table, FailurePolicy policy) {
  const auto agents = table.integer("local_share", 1, limiter::kMostShares);
  if (agents && policy != FailurePolicy::local) table.fail("local_share", "is for on_failure = \"local\"");
  return agents.value_or(0);
}

std::int64_t read_split(const Table& table, const LimitConfig& limit) {
  constexpr std::int64_t kMostParts = 64;
  const std::int64_t parts = table.integer("split", 2, kMostParts).value_or(1);
  if (parts == 1) return 1;
  if (limit.is_host_wide) table.fail("split", "is for limits that hosts share");
  if (limit.lease.amount > 0) table.fail("split", "cannot stand beside lease");
  const auto check = [&](const limiter::Definition& definition) {
    if (definition.shape() != limiter::Definition::Shape::bucket)
      table.fail("split", "is for a token_bucket without tiers");
    const limiter::TokenBucket& bucket = definition.bucket();
    if (bucket.rate().count < parts || bucket.burst() < parts)
      table.fail("split", "must be at most the rate's count and the burst");
    if (auto made = parts_of(definition, parts); !made) table.fail("split", made.error().message);
  };
  check(*limit.definition);
  for (const Plan& plan : limit.plans) check(*plan.definition);
  for (const Override& override : limit.overrides) {
    if (override.kind == Override::Kind::definition) check(*override.definition);
  }
  return parts;
}

LimitConfig read_limit(const Table& table, std::string name, const AgentConfig& agent) {
  constexpr std::array<std::string_view, 17> kKnown = {"rate",
                                                       "burst",
                                                       "algorithm",
                                                       "align",
                                                       "tiers",
                                                       "shadow",
                                                       "plans",
                                                       "overrides",
                                                       "on_failure",
                                                       "scope",
                                                       "refund",
                                                       "lease",
                                                       "split",
                                                       "deadline",
                                                       "local_share",
                                                       "overflow",
                                                       "max_new_keys_per_second"};
  table.allow_only(kKnown);
  LimitConfig limit;
  limit.name = std::move(name);
  limit.definition = read_definition(table, table.boolean("shadow").value_or(false) || agent.shadow);
  if (const auto overrides = table.table("overrides")) read_overrides(*overrides, limit);
  if (const auto plans = table.table("plans")) {
    for (const std::string& plan : plans->names()) {
      if (!is_name(plan)) plans->fail(plan, "a plan's name " + std::string(kNameRule));
      limit.plans.push_back(read_plan(*plans->table(plan), plan, *limit.definition));
    }
  }
  const auto scope = table.text("scope").value_or("global");
  if (scope != "global" && scope != "host") table.fail("scope", "must be \"global\" or \"host\"");
  limit.is_host_wide = scope == "host";
  limit.may_refund = table.boolean("refund").value_or(false);
  const bool is_counter = limit.definition->shape() == limiter::Definition::Shape::counter;
  if (limit.may_refund && is_counter) table.fail("refund", "a counter cannot give back");
  limit.lease = read_lease(table, *limit.definition);
  limit.split = read_split(table, limit);
  if (limit.is_host_wide && limit.lease.amount > 0) table.fail("lease", "is for limits that hosts share");
  limit.on_failure = read_policy(table);
  limit.local_share = read_local_share(table, limit.on_failure);
  limit.deadline = table.duration("deadline").value_or(agent.deadline);
  limit.max_new_keys_per_second =
      table.integer("max_new_keys_per_second", 1, kMostNewKeysPerSecond).value_or(0);
  if (const auto overflow = table.table("overflow"))
    limit.overflow = read_overflow(*overflow, limit.definition->is_shadow());
  return limit;
}

void check_name(const Table& limits, const std::string& name) {
  if (!is_name(name)) limits.fail(name, "a limit's name " + std::string(kNameRule));
  if (name == "inline")
    limits.fail(name, "is reserved: limits that applications define are counted under it");
}

Config read_config(const toml::table& root) {
  constexpr std::array<std::string_view, 4> kKnown = {"agent", "redis", "prefilter", "limits"};
  const Table top(root, "");
  top.allow_only(kKnown);
  Config config;
  if (const auto agent = top.table("agent")) config.agent = read_agent(*agent);
  if (const auto redis = top.table("redis")) config.redis = read_redis(*redis);
  if (const auto prefilter = top.table("prefilter")) config.prefilter = read_prefilter(*prefilter);
  const auto limits = top.table("limits");
  if (!limits) return config;
  for (const std::string& name : limits->names()) {
    check_name(*limits, name);
    config.limits.push_back(read_limit(*limits->table(name), name, config.agent));
  }
  return config;
}

// Runs `read`, and makes of whatever it throws an Error that names the place.
template <class Read>
auto guarded(std::string_view file, Read read) -> Result<decltype(read())> {
  const auto at = [&](const toml::source_region& where) {
    return std::string(file) + ":" + std::to_string(where.begin.line) + ": ";
  };
  try {
    return read();
  } catch (const toml::parse_error& problem) {
    return Error{Error::Code::bad_request, at(problem.source()) + std::string(problem.description())};
  } catch (const Problem& problem) {
    return Error{Error::Code::bad_request, at(problem.where) + problem.key + ": " + problem.reason};
  }
}

}  // namespace

std::int64_t LeaseSize::permits(const limiter::Definition& definition) const {
  if (amount == 0 || definition.shape() != limiter::Definition::Shape::bucket || definition.is_shadow())
    return 0;
  const std::int64_t burst = definition.bucket().burst();
  if (!is_percent) return std::min(amount, burst);
  return std::max<std::int64_t>(1, burst / 100 * amount + burst % 100 * amount / 100);
}

Result<std::vector<limiter::DefinitionPtr>> parts_of(const limiter::Definition& definition,
                                                     std::int64_t parts) {
  std::vector<limiter::DefinitionPtr> all;
  if (parts < 2 || definition.shape() != limiter::Definition::Shape::bucket) return all;
  const limiter::TokenBucket& bucket = definition.bucket();
  const auto share = [&](std::int64_t whole, std::int64_t part) {
    return whole / parts + (part < whole % parts ? 1 : 0);
  };
  for (std::int64_t i = 0; i < parts; ++i) {
    auto part = limiter::TokenBucket::make({share(bucket.rate().count, i), bucket.rate().period},
                                           share(bucket.burst(), i));
    if (!part) return std::move(part.error());
    all.push_back(*limiter::Definition::make({{"", *part, false}}, definition.is_shadow()));
  }
  return all;
}

std::string LeaseSize::print() const {
  return is_percent ? "\"" + std::to_string(amount) + "%\"" : std::to_string(amount);
}

std::string_view name_of(FailurePolicy policy) {
  switch (policy) {
    case FailurePolicy::allow: return "allow";
    case FailurePolicy::deny: return "deny";
    case FailurePolicy::local: return "local";
  }
  return "";
}

Result<Config> parse_config(std::string_view text, std::string_view file) {
  return guarded(file, [&] { return read_config(toml::parse(text)); });
}

Result<Config> load_config(const std::string& path) {
  std::error_code problem;
  if (std::filesystem::is_directory(path, problem))
    return Error{Error::Code::system, path + ": is a directory"};
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Error::Code::system, path + ": cannot be read"};
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return Error{Error::Code::system, path + ": cannot be read"};
  return parse_config(text.str(), path);
}

Result<limiter::DefinitionPtr> make_definition(std::string_view name, std::span<const InlineRate> rates,
                                               bool shadow) {
  const auto fail = [](std::string_view key, std::string reason) {
    throw Problem{{}, "limit." + std::string(key), std::move(reason)};
  };
  try {
    if (!is_name(name)) fail("name", std::string(kNameRule));
    std::vector<limiter::Tier> tiers;
    for (const InlineRate& rate : rates) {
      if (!rate.tier.empty() && !is_name(rate.tier)) fail("tiers", "a tier's name " + std::string(kNameRule));
      tiers.push_back({std::string(rate.tier), make_algorithm(rate, fail), false});
    }
    auto definition = limiter::Definition::make(std::move(tiers), shadow);
    if (!definition) return std::move(definition.error()).within("limit");
    return *definition;
  } catch (const Problem& problem) {
    return Error{Error::Code::bad_request, problem.key + ": " + problem.reason};
  }
}

Result<LimitConfig> parse_limit(std::string_view toml, std::string_view name) {
  return guarded(name, [&] {
    const toml::table table = toml::parse(toml);
    return read_limit(Table(table, ""), std::string(name), AgentConfig());
  });
}

}  // namespace allowd::config
