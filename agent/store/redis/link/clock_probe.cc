// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/clock_probe.h"

#include <charconv>
#include <memory>
#include <optional>
#include <utility>

namespace allowd::store {
namespace {

constexpr std::size_t kMostRounds = 3;
constexpr auto kShortRoundTrip = std::chrono::microseconds(500);

bool read_number(const redisReply* reply, std::int64_t& number) {
  if (reply->type != REDIS_REPLY_STRING) return false;
  const auto [end, problem] = std::from_chars(reply->str, reply->str + reply->len, number);
  return problem == std::errc() && end == reply->str + reply->len;
}

// TIME answers seconds and microseconds as two strings.
std::optional<limiter::TimePoint> read_time(const Reply& reply) {
  std::int64_t whole_seconds = 0, micros = 0;
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) return std::nullopt;
  if (!read_number(reply->element[0], whole_seconds) || !read_number(reply->element[1], micros)) {
    return std::nullopt;
  }
  constexpr std::int64_t kMaxSeconds = std::int64_t{1} << 33;  // the year 2242: microseconds stay below 2^53
  if (whole_seconds < 0 || whole_seconds > kMaxSeconds || micros < 0 || micros > 999'999) return std::nullopt;
  return limiter::TimePoint{std::chrono::seconds(whole_seconds) + limiter::Micros{micros}};
}

struct Probe {
  Connection& connection;
  std::function<void(ClockReadings)> done;
  ClockReadings readings;
};

void ask_once(const std::shared_ptr<Probe>& probe) {
  write_command(probe->connection.outbox(), {"TIME"});
  probe->connection.expect([probe, sent = loop::Loop::exact_now()](const Reply& reply) {
    if (reply == nullptr) return;
    if (is_error(reply)) {
      const std::string text(text_of(reply));
      return probe->done(
          {{}, Error{Error::Code::retry_later, "ask the time: " + text}, read_error(text).kind});
    }
    const auto server = read_time(reply);
    if (!server) {
      return probe->done({{}, {Error::Code::system, "the answer to TIME is not a time"}, ServerError::other});
    }
    const ClockReading reading{sent, loop::Loop::exact_now(), *server};
    auto& all = probe->readings.all;
    all.push_back(reading);
    const bool is_enough = reading.received - reading.sent <= kShortRoundTrip || all.size() == kMostRounds;
    is_enough ? probe->done(std::move(probe->readings)) : ask_once(probe);
  });
  probe->connection.flush();
}

}  // namespace

void ask_time(Connection& connection, std::function<void(ClockReadings)> done) {
  ask_once(std::make_shared<Probe>(Probe{connection, std::move(done), {}}));
}

}  // namespace allowd::store
