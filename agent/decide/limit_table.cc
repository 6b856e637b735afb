// SPDX-License-Identifier: MIT
#include "agent/decide/limit_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "agent/config/units.h"
#include "agent/store/store.h"

namespace allowd::decide {

std::size_t LimitTable::Hash::operator()(std::string_view text) const {
  return XXH3_64bits(text.data(), text.size());
}

LimitTable::LimitTable(const config::Config& config, stats::Registry& registry)
    : registry_(registry), default_deadline_(config.agent.deadline) {
  for (const config::LimitConfig& limit : config.limits) {
    configured_.push_back(std::make_shared<const Limit>(Limit{
        limit.name, store::make_limit_tag('n', limit.name), limit.bucket, limit.on_failure, limit.deadline,
        &registry.decisions_of(limit.name, ""), &registry.decisions_of(limit.name, "overflow")}));
    by_name_.emplace(limit.name, configured_.back());
  }
}

const LimitPtr* LimitTable::find(std::string_view name) const {
  if (last_found_ != nullptr && (*last_found_)->name == name) return last_found_;
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  return last_found_ = &found->second;
}

Result<LimitPtr> LimitTable::find_or_parse(const protocol::InlineLimit& definition) {
  if (const auto found = inline_.find(definition.encoded); found != inline_.end()) return found->second;
  auto rate = config::parse_rate(definition.rate);
  if (!rate) return std::move(rate.error()).within("limit.rate");
  auto bucket = limiter::TokenBucket::make(*rate, definition.burst.value_or(rate->count));
  if (!bucket) return std::move(bucket.error()).within("limit");
  // One label for all of them: applications choose the names, and labels must stay few.
  auto limit = std::make_shared<const Limit>(
      Limit{std::string(definition.name), store::make_limit_tag('i', definition.name), *bucket,
            config::FailurePolicy::allow, default_deadline_, &registry_.decisions_of("inline", ""),
            &registry_.decisions_of("inline", "overflow")});
  if (inline_.size() >= kMaxInline) {
    inline_.erase(inline_order_.front());
    inline_order_.pop_front();
  }
  inline_.emplace(std::string(definition.encoded), limit);
  inline_order_.emplace_back(definition.encoded);
  return LimitPtr(std::move(limit));
}

}  // namespace allowd::decide
