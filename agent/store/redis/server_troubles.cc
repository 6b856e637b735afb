// SPDX-License-Identifier: MIT
#include "agent/store/redis/server_troubles.h"

#include <chrono>
#include <string>

namespace allowd::store {

void ServerTroubles::count(ServerError kind) {
  switch (kind) {
    case ServerError::busy: ++busy_; break;
    case ServerError::no_memory: ++no_memory_; break;
    case ServerError::cannot_persist: ++cannot_persist_; break;
    case ServerError::not_permitted: ++not_permitted_; break;
    case ServerError::wrong_server: ++wrong_server_; break;
    default: break;  // counted with all errors alone
  }
}

void ServerTroubles::forbid(std::size_t shape, SteadyTime now) {
  constexpr limiter::Micros kLeast = std::chrono::seconds(30), kMost = std::chrono::seconds(60);
  std::uniform_int_distribution<std::int64_t> wait(kLeast.count(), kMost.count());
  forbidden_until_[shape] = now + limiter::Micros{wait(random_)};
}

void ServerTroubles::collect(std::vector<stats::Metric>& metrics) const {
  const auto add = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    metrics.push_back({"redis_" + std::string(name) + "_total", stats::Metric::Kind::counter,
                       std::string(help), static_cast<double>(value)});
  };
  add("busy", "Scripts answered LOADING or BUSY.", busy_);
  add("no_memory", "Scripts answered OOM: Redis is full and may not evict.", no_memory_);
  add("cannot_persist", "Scripts answered MISCONF or NOREPLICAS: Redis takes no writes.", cannot_persist_);
  add("not_permitted", "Scripts refused for want of a permission.", not_permitted_);
  add("wrong_server", "Scripts answered READONLY or MASTERDOWN: no master, it is looked for anew.",
      wrong_server_);
}

}  // namespace allowd::store
