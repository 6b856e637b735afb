// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/log_call.h"

#include <algorithm>

namespace allowd::store {

void LogCall::write_arguments(ByteBuffer& out) const {
  for (const Item& item : items()) {
    const limiter::Rate rate = definition(item).log().rate();
    write_bulk(out, letter_of(item.operation));
    write_bulk(out, std::min(item.cost, limiter::kMaxUsed));
    write_bulk(out, rate.count);
    write_bulk(out, std::int64_t{rate.period.count()});
  }
}

std::vector<SharedAnswer> LogCall::answers(const redisReply& reply) const {
  std::vector<SharedAnswer> all;
  all.reserve(items().size());
  for (std::size_t i = 0; i < items().size(); ++i) {
    const limiter::SlidingLog& log = definition(items()[i]).log();
    const auto number = [&](std::size_t n) {
      return std::int64_t{reply.element[kNumbersPerItem * i + n]->integer};
    };
    const auto time = [&](std::size_t n) {  // none that our script sends is cut
      return limiter::TimePoint{
          limiter::Micros{std::clamp<std::int64_t>(number(n), 0, 2 * limiter::kMaxUsed)}};
    };
    const std::int64_t passed = number(0), used = number(1);
    const limiter::SlidingLog::Summary summary{used, time(2), time(3), time(4)};
    all.push_back(no_answer());
    if ((passed != 0 && passed != 1) || used < 0 || used > limiter::kMaxUsed) continue;  // newer, or not ours
    // A clock that stepped back counts as the time of the newest stamp, which leaves a window later.
    const auto now = used > 0 ? std::max(asked_at(), summary.all_free - log.rate().period) : asked_at();
    const auto latest = now + log.rate().period;
    const auto is_ahead = [&](limiter::TimePoint then) { return then > now && then <= latest; };
    if (used > 0 && !(is_ahead(summary.all_free) && is_ahead(summary.more_fits))) continue;
    if (passed == 0 && !is_ahead(summary.cost_fits)) continue;
    const auto verdict = passed == 1 ? limiter::Verdict::ok : limiter::Verdict::limited;
    all.back().status = Answer::Status::decided;
    all.back().decision = log.describe(summary, verdict, now);
    definition(items()[i]).judge(all.back().decision);
  }
  return all;
}

}  // namespace allowd::store
