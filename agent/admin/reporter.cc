// SPDX-License-Identifier: MIT
#include "agent/admin/reporter.h"

#include "agent/stats/render.h"

namespace allowd::admin {
namespace {

using protocol::Value;

constexpr int kProtocolVersion = 1;
constexpr int kFirstGeneration = 1;  // of the config; it is read once, at start

Value describe(const decide::Limit& limit) {
  Value::List tier{Value(""), Value(limit.bucket.burst()), Value(limit.bucket.window().count()),
                   Value("token_bucket")};
  return Value::Map{{"on_failure", config::name_of(limit.on_failure)},
                    {"shadow", false},
                    {"tiers", Value::List{Value(std::move(tier))}}};
}

}  // namespace

Value Reporter::info(store::SteadyTime now) const {
  Value::Map limits;
  for (const decide::LimitPtr& limit : limits_.configured())
    limits.emplace_back(limit->name, describe(*limit));
  return Value::Map{{"version", version_},
                    {"protocol", kProtocolVersion},
                    {"features", Value::List{}},
                    {"uptime_us", (now - started_).count()},
                    {"store", store_.name()},
                    {"config_hash", config_hash_},
                    {"generation", kFirstGeneration},
                    {"degraded", !store_.is_available()},
                    {"limits", std::move(limits)}};
}

Value Reporter::stats() const { return stats::to_value(registry_); }
std::string Reporter::stats_as_text() const { return stats::to_text(registry_); }
std::string Reporter::stats_for_prometheus() const { return stats::to_prometheus(registry_, version_); }

}  // namespace allowd::admin
