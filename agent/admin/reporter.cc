// SPDX-License-Identifier: MIT
#include "agent/admin/reporter.h"

#include "agent/stats/render.h"

namespace allowd::admin {
namespace {

using protocol::Value;

constexpr int kProtocolVersion = 1;

Value describe(const decide::Limit& limit) {
  const limiter::Definition& definition = *limit.base().definition;
  Value::List tiers;
  for (const limiter::Tier& tier : definition.tiers()) {
    tiers.emplace_back(Value::List{Value(tier.name), Value(tier.capacity()), Value(tier.window().count()),
                                   Value(name_of(tier.algorithm))});
  }
  return Value::Map{{"on_failure", config::name_of(limit.on_failure())},
                    {"shadow", definition.is_shadow()},
                    {"tiers", std::move(tiers)}};
}

}  // namespace

Value Reporter::info(store::SteadyTime now) const {
  Value::Map limits;
  for (const decide::LimitPtr& limit : limits_.configured())
    limits.emplace_back(limit->name(), describe(*limit));
  return Value::Map{{"version", version_},
                    {"protocol", kProtocolVersion},
                    {"features", Value::List{Value("plan"), Value("force")}},
                    {"uptime_us", (now - started_).count()},
                    {"store", store_.name()},
                    {"config_hash", config_.hash},
                    {"generation", config_.generation},
                    {"reload_error", config_.reload_error},
                    {"degraded", !store_.is_available()},
                    {"agents", std::int64_t{store_.most_agents().value_or(0)}},
                    {"limits", std::move(limits)}};
}

Value Reporter::stats() const { return stats::to_value(registry_); }
std::string Reporter::stats_as_text() const { return stats::to_text(registry_); }
std::string Reporter::top(std::size_t rows, store::SteadyTime now) const {
  return stats::top_to_text(registry_.hot_keys(), rows, now);
}
std::string Reporter::stats_for_prometheus() const { return stats::to_prometheus(registry_, version_); }

}  // namespace allowd::admin
