// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/server_watch.h"

#include <charconv>
#include <memory>
#include <utility>

#include "agent/log/log.h"

namespace allowd::store {
namespace {

constexpr limiter::Micros kRemindEvery = std::chrono::hours(1);
constexpr std::uint64_t kPercentile = 99;
// One slow answer among the few that an idle minute brings is none in a hundred.
constexpr std::uint64_t kFewestSlow = 2;

// The value of a line "name:value\r\n".
std::optional<std::string_view> value_of(std::string_view info, std::string_view name) {
  for (std::size_t at = info.find(name); at != std::string_view::npos; at = info.find(name, at + 1)) {
    const bool is_line = at == 0 || info[at - 1] == '\n';
    const std::size_t colon = at + name.size();
    if (!is_line || colon >= info.size() || info[colon] != ':') continue;
    const std::string_view rest = info.substr(colon + 1);
    return rest.substr(0, rest.find_first_of("\r\n"));
  }
  return std::nullopt;
}

void read_number(std::string_view info, std::string_view name, std::optional<std::int64_t>& number) {
  const auto text = value_of(info, name);
  std::int64_t value = 0;
  if (text && std::from_chars(text->data(), text->data() + text->size(), value).ec == std::errc())
    number = value;
}

}  // namespace

void ServerReport::read(std::string_view info) {
  if (const auto policy = value_of(info, "maxmemory_policy")) maxmemory_policy = std::string(*policy);
  read_number(info, "maxmemory", maxmemory);
  read_number(info, "evicted_keys", evicted_keys);
}

bool ServerReport::may_evict() const {
  return maxmemory_policy && *maxmemory_policy != "noeviction" && maxmemory.value_or(1) != 0;
}

bool ServerWatch::Concern::should_tell(bool is_so, SteadyTime now) {
  if (!is_so) {
    told_at_.reset();
    return false;
  }
  if (told_at_ && now - *told_at_ < kRemindEvery) return false;
  told_at_ = now;
  return true;
}

void ServerWatch::begin(Connection& connection) {
  if (deadline_.count() > 0) connection.count_slower_than(deadline_ / 2);
  evicted_before_.reset();  // it may be another server
}

bool ServerWatch::are_slow(const Connection::RoundTrips& trips) {
  return trips.slow >= kFewestSlow && trips.slow * 100 > trips.all * (100 - kPercentile);
}

void ServerWatch::look_at_round_trips(Connection& connection, SteadyTime now) {
  const Connection::RoundTrips trips = connection.take_round_trips();
  slow_replies_ += trips.slow;
  if (!is_slow_.should_tell(are_slow(trips), now)) return;
  log::warn(
      "redis {}: {} of {} answers of the last minute took longer than {} us, half of agent.deadline; the p99 "
      "of its "
      "round trip is too near to the deadline",
      name_, trips.slow, trips.all, (deadline_ / 2).count());
}

void ServerWatch::look(Connection& connection, SteadyTime now) {
  look_at_round_trips(connection, now);
  const auto report = std::make_shared<ServerReport>();
  const auto read = [report](const Reply& reply) {
    if (reply != nullptr && reply->type == REDIS_REPLY_STRING) report->read(text_of(reply));
  };
  write_command(connection.outbox(), {"INFO", "memory"});
  connection.expect(read);
  write_command(connection.outbox(), {"INFO", "stats"});
  connection.expect([this, read, report, now](const Reply& reply) {
    read(reply);
    if (reply != nullptr) judge(*report, now);
  });
  connection.flush();
}

void ServerWatch::judge(const ServerReport& report, SteadyTime now) {
  if (may_evict_.should_tell(report.may_evict(), now)) {
    log::warn(
        "redis {}: its maxmemory_policy is {}: when it is full it forgets what was used; noeviction does not",
        name_, *report.maxmemory_policy);
  }
  if (!report.evicted_keys) return;
  const auto before = std::exchange(evicted_before_, report.evicted_keys);
  if (before && evicts_.should_tell(*report.evicted_keys > *before, now)) {
    log::warn("redis {}: it has evicted {} keys since a minute ago: what was used may be forgotten", name_,
              *report.evicted_keys - *before);
  }
}

}  // namespace allowd::store
