// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/heartbeat.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "agent/log/log.h"
#include "agent/store/redis/codec/resp.h"

namespace allowd::store {
namespace {

using limiter::Micros;
using std::chrono::seconds;

constexpr Micros kForgottenAfter = seconds(30);
constexpr std::string_view kSetLives = "60";  // seconds
constexpr std::uint32_t kBeatsPerSweep = 3;
constexpr std::pair<Micros, Micros> kToSecondBeat{seconds(1), seconds(3)};
constexpr std::pair<Micros, Micros> kBetweenBeats{seconds(8), seconds(12)};

std::string micros_of(limiter::TimePoint time) { return std::to_string(time.time_since_epoch().count()); }

}  // namespace

void AgentCount::add(std::uint32_t size, SteadyTime now) {
  while (!readings_.empty() && readings_.back().size <= size) readings_.pop_back();
  readings_.push_back({size, now});
  while (now - readings_.front().at > kRemembered) readings_.pop_front();
}

std::optional<std::uint32_t> AgentCount::agents() const {
  if (readings_.empty()) return std::nullopt;
  return readings_.front().size;
}

Heartbeat::Heartbeat(loop::Loop& loop, Link& link, Options options)
    : loop_(loop), link_(link), options_(std::move(options)), random_(options_.random_seed), timer_(loop) {}

void Heartbeat::begin() {
  if (has_left_) return;
  beat();
  const auto [least, most] = kToSecondBeat;
  timer_.once(Micros{std::uniform_int_distribution(least.count(), most.count())(random_)},
              [this] { beat(); });
}

void Heartbeat::beat() {
  const auto [least, most] = kBetweenBeats;
  timer_.once(Micros{std::uniform_int_distribution(least.count(), most.count())(random_)},
              [this] { beat(); });
  const std::string key = options_.key ? options_.key() : std::string();
  if (!link_.is_up() || key.empty()) return;
  Connection& connection = link_.connection();
  const limiter::TimePoint now = link_.clock().at(loop_.now());
  if (std::exchange(is_foreign_, false)) {
    write_command(connection.outbox(), {"DEL", key});
    connection.expect([this](const Reply& reply) {
      if (reply != nullptr && !is_error(reply)) ++healed_total_;
    });
  }
  write_command(connection.outbox(), {"ZADD", key, micros_of(now), options_.id});
  connection.expect([this](const Reply& reply) {
    if (reply != nullptr && is_error(reply)) report(reply);
  });
  write_command(connection.outbox(), {"EXPIRE", key, kSetLives});
  const std::string oldest = micros_of(now - kForgottenAfter), newest = micros_of(now + kForgottenAfter);
  std::size_t replies_before = 1;
  if (beats_++ % kBeatsPerSweep == 0) {
    write_command(connection.outbox(), {"ZREMRANGEBYSCORE", key, "-inf", "(" + oldest});
    write_command(connection.outbox(), {"ZREMRANGEBYSCORE", key, "(" + newest, "+inf"});
    replies_before += 2;
  }
  write_command(connection.outbox(), {"ZCOUNT", key, oldest, newest});
  connection.expect([this](const Reply& reply) { on_count(reply); }, replies_before);
  connection.flush();
  link_.watch_for_stall();
}

void Heartbeat::on_count(const Reply& reply) {
  if (reply == nullptr || reply->type != REDIS_REPLY_INTEGER || reply->integer < 1) return;
  constexpr long long kMost = std::numeric_limits<std::uint32_t>::max();
  count_.add(static_cast<std::uint32_t>(std::min(reply->integer, kMost)), loop_.now());
  has_reported_ = false;
}

void Heartbeat::report(const Reply& error) {
  constexpr std::string_view kWrongType = "WRONGTYPE";
  is_foreign_ = text_of(error).substr(0, kWrongType.size()) == kWrongType;
  if (std::exchange(has_reported_, true)) return;
  log::warn("redis {}: the agents cannot be counted: {}", link_.name(), text_of(error));
}

void Heartbeat::leave() {
  has_left_ = true;
  timer_.stop();
  const std::string key = options_.key ? options_.key() : std::string();
  if (!link_.is_up() || key.empty()) return;
  Connection& connection = link_.connection();
  write_command(connection.outbox(), {"ZREM", key, options_.id});
  connection.expect([](const Reply&) {});
  connection.flush();
}

}  // namespace allowd::store
