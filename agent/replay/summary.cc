// SPDX-License-Identifier: MIT
#include "agent/replay/summary.h"

#include <sstream>

#include "protocol/quoted.h"

namespace allowd::replay {

void Summary::add(std::string_view key, const limiter::Decision& decision) {
  ++lines_;
  switch (decision.verdict) {
    case limiter::Verdict::ok: ++allowed_; return;
    case limiter::Verdict::shadow:
      ++allowed_;
      ++shadow_;
      break;
    case limiter::Verdict::limited: ++limited_; break;
    case limiter::Verdict::never: ++never_; break;
  }
  add_refusal(std::string(key));
}

void Summary::add_refusal(const std::string& key) {
  const auto found = refused_.find(key);
  Refusals refusals;
  if (found != refused_.end()) {
    refusals = found->second;
    by_count_.erase({refusals.count, key});
  } else if (refused_.size() >= kKeys) {
    // The least refused makes room, and hands its count down as what may be wrong with the new one's.
    const auto least = by_count_.begin();
    refusals = {least->first, least->first};
    refused_.erase(least->second);
    by_count_.erase(least);
  }
  ++refusals.count;
  refused_[key] = refusals;
  by_count_.emplace(refusals.count, key);
}

std::string Summary::text() const {
  std::ostringstream out;
  out << lines_ << " lines: " << allowed_ << " allowed, " << limited_ << " limited, " << never_ << " never\n";
  if (shadow_ > 0) out << shadow_ << " of the allowed would have been refused (shadow)\n";
  if (refused_.empty()) return out.str();
  out << "most refused keys:\n";
  std::size_t shown = 0;
  for (auto entry = by_count_.rbegin(); entry != by_count_.rend() && shown < kShown; ++entry, ++shown) {
    out << "  " << entry->first << "  " << protocol::quoted(entry->second);
    if (const auto error = refused_.at(entry->second).too_high_by; error > 0)
      out << "  (at most " << error << " fewer)";
    out << "\n";
  }
  return out.str();
}

}  // namespace allowd::replay
