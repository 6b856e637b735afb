// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/link.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace allowd::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr limiter::Micros kSignInTimeout = seconds(1);  // resolving, connecting and signing in together
constexpr limiter::Micros kFirstBackoff = milliseconds(250);
constexpr limiter::Micros kBetweenAttempts = milliseconds(340);
constexpr limiter::Micros kStalledAfter = seconds(1);
constexpr limiter::Micros kStallCheckEvery = milliseconds(250);
constexpr limiter::Micros kDrainFor = seconds(30);
constexpr limiter::Micros kClockEvery = seconds(5);
constexpr limiter::Micros kRemindEvery = std::chrono::minutes(1);
constexpr int kClockRounds = 3;

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
  return limiter::TimePoint{seconds(whole_seconds) + limiter::Micros{micros}};
}

// What INFO says of the server, or 0: an ACL may forbid it.
int major_version_in(const Reply& reply) {
  constexpr std::string_view kName = "redis_version:";
  if (reply == nullptr || reply->type != REDIS_REPLY_STRING) return 0;
  const std::string_view text = text_of(reply);
  const std::size_t at = text.find(kName);
  int version = 0;
  if (at != std::string_view::npos) {
    std::from_chars(text.data() + at + kName.size(), text.data() + text.size(), version);
  }
  return version;
}

}  // namespace

Link::Link(loop::Loop& loop, Options options)
    : loop_(loop),
      options_(std::move(options)),
      name_(options_.label.empty() ? url() : options_.label + " (" + url() + ")"),
      addresses_(loop),
      random_(options_.random_seed),
      attempt_timer_(loop),
      sign_in_timer_(loop),
      clock_timer_(loop),
      stall_timer_(loop),
      drain_timer_(loop),
      reminder_timer_(loop) {}

void Link::start() {
  down_since_ = loop_.now();
  connect();
}

void Link::connect() {
  ++attempts_;
  ++attempts_total_;
  attempted_at_ = loop_.now();
  clock_.forget();
  epoch_ = ++*options_.epochs;
  connection_.reset();
  sign_in_timer_.once(kSignInTimeout, [this] {
    give_up_attempt({Error::Code::retry_later, "no answer within a second"});
  });
  options_.source->find(
      [this](const Result<RedisEndpoint>& found) { found ? open(*found) : give_up_attempt(found.error()); });
}

void Link::open(const RedisEndpoint& endpoint) {
  endpoint_ = endpoint;
  connection_ =
      std::make_unique<Connection>(loop_, endpoint_, [this, generation = ++generation_](const Error& why) {
        if (generation == generation_) go_down(why);
      });
  connection_->set_tls(options_.tls);
  connection_->open(addresses_, [this] { sign_in(); });
}

void Link::give_up_attempt(Error why) {
  if (connection_) return connection_->close(std::move(why));
  options_.source->forget();
  go_down(why);
}

void Link::ask(std::initializer_list<std::string_view> command, std::string_view doing,
               std::function<void(const Reply&)> on_reply) {
  write_command(connection_->outbox(), command);
  connection_->expect([this, doing, on_reply = std::move(on_reply)](Reply reply) {
    if (reply == nullptr) return;  // the connection has ended, and says so itself
    if (is_error(reply)) {
      return connection_->close(Error{Error::Code::retry_later, std::string(text_of(reply))}.within(doing));
    }
    on_reply(reply);
  });
}

void Link::sign_in() {
  const auto accept = [](const Reply&) {};
  if (!endpoint_.user.empty()) {
    ask({"AUTH", endpoint_.user, endpoint_.password}, "sign in", accept);
  } else if (!endpoint_.password.empty()) {
    ask({"AUTH", endpoint_.password}, "sign in", accept);
  }
  if (endpoint_.db != 0) ask({"SELECT", std::to_string(endpoint_.db)}, "select the database", accept);
  write_command(connection_->outbox(), {"CLIENT", "SETNAME", "allowd"});
  connection_->expect([](Reply) {});  // a courtesy to whoever lists clients; an ACL may forbid it
  server_major_version_ = 0;
  write_command(connection_->outbox(), {"INFO", "server"});
  connection_->expect([this](const Reply& reply) { server_major_version_ = major_version_in(reply); });
  ask({"SCRIPT", "LOAD", options_.script}, "load the script", [this](const Reply& reply) {
    script_sha_ = text_of(reply);
    measure_clock(kClockRounds, [this] { come_up(); });
  });
  connection_->flush();
}

void Link::measure_clock(int rounds_left, std::function<void()> done) {
  const SteadyTime sent = loop_.exact_now();
  ask({"TIME"}, "ask the time", [this, sent, rounds_left, done = std::move(done)](const Reply& reply) {
    const auto server = read_time(reply);
    if (!server) return connection_->close({Error::Code::system, "the answer to TIME is not a time"});
    clock_.add_sample(sent, loop_.exact_now(), *server);
    if (rounds_left > 1) return measure_clock(rounds_left - 1, done);
    if (clock_.finish_round(loop_.now())) {
      epoch_ = ++*options_.epochs;
      spdlog::warn("redis {}: its clock stepped against ours; jumps so far: {}", name_, clock_.jumps());
    }
    done();
  });
  connection_->flush();
}

void Link::come_up() {
  sign_in_timer_.stop();
  reminder_timer_.stop();
  is_up_ = true;
  attempts_ = 0;
  ++connects_total_;
  has_reported_down_ = false;
  spdlog::info("redis {}: connected, clock known to {} us", name_, clock_.uncertainty(loop_.now()).count());
  report_look_up();
  clock_timer_.every(kClockEvery, [this] {
    measure_clock(kClockRounds, [] {});
    watch_for_stall();  // so that a server that hangs is noticed before a query has to wait for it
  });
}

void Link::report_look_up() {
  const int status = connection_->look_up_status();
  if (std::exchange(has_reported_look_up_, status != 0) || status == 0) return;
  spdlog::warn("redis {}: its name cannot be looked up ({}): connected by the addresses of before", name_,
               uv_strerror(status));
}

void Link::go_down(const Error& why) {
  sign_in_timer_.stop();
  clock_timer_.stop();
  stall_timer_.stop();
  if (std::exchange(is_up_, false)) down_since_ = loop_.now();
  if (!std::exchange(has_reported_down_, true)) {
    spdlog::warn("redis {}: down: {}; on_failure decides meanwhile", name_, why.message);
    reminder_timer_.every(kRemindEvery, [this] {
      const auto span = std::chrono::duration_cast<seconds>(loop_.now() - down_since_);
      spdlog::warn("redis {}: still down after {} s and {} attempts{}", name_, span.count(), attempts_,
                   reminder_ ? "; " + reminder_() : "");
    });
  }
  schedule_attempt();
}

void Link::schedule_attempt() {
  limiter::Micros wait{0};
  if (attempts_ > 0) {
    limiter::Micros bound = kFirstBackoff;
    for (std::uint64_t i = 1; i < attempts_ && bound < options_.reconnect_max; ++i) bound *= 2;
    bound = std::min(bound, options_.reconnect_max);
    wait = limiter::Micros{std::uniform_int_distribution<std::int64_t>(0, bound.count())(random_)};
  }
  const SteadyTime now = loop_.now();
  next_attempt_at_ = std::max(now + wait, attempted_at_ + kBetweenAttempts);
  // Never from inside the callback of the connection that has just ended: that one has to be destroyed first.
  attempt_timer_.once(next_attempt_at_ - now, [this] { connect(); });
}

void Link::reload_script() {
  ask({"SCRIPT", "LOAD", options_.script}, "load the script", [](const Reply&) {});
}

void Link::drop(Error why) {
  if (is_up_) connection_->close(std::move(why));
}

void Link::watch_for_stall() {
  if (!stall_timer_.is_running()) stall_timer_.every(kStallCheckEvery, [this] { check_for_stall(); });
}

void Link::check_for_stall() {
  if (!is_up_ || connection_->open_commands() == 0) return stall_timer_.stop();
  if (loop_.now() - connection_->oldest_open() < kStalledAfter) return;
  ++stalls_total_;
  ++generation_;
  end_draining();
  draining_ = std::move(connection_);
  drain_timer_.once(kDrainFor, [this] { end_draining(); });
  go_down({Error::Code::retry_later, "no answer for a second"});
}

void Link::end_draining() {
  if (!draining_) return;
  draining_->close({Error::Code::retry_later, "given up"});
  draining_.reset();
}

limiter::Micros Link::next_attempt_in(SteadyTime now) const {
  const SteadyTime next = attempt_timer_.is_running() ? next_attempt_at_ : attempted_at_ + kSignInTimeout;
  return std::max(next - now, limiter::Micros{1});
}

void Link::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  const auto number = [](auto value) { return static_cast<double>(value); };
  metrics.push_back(
      {"redis_up", Kind::gauge, "Redis servers that answer, of redis_shards.", is_up_ ? 1.0 : 0.0});
  metrics.push_back({"redis_connection_attempts_total", Kind::counter, "Attempts to connect to Redis.",
                     number(attempts_total_)});
  metrics.push_back(
      {"redis_connects_total", Kind::counter, "Attempts that succeeded.", number(connects_total_)});
  metrics.push_back({"redis_look_ups_failed_total", Kind::counter,
                     "Look-ups of a server's name that failed or took longer than half a second.",
                     number(addresses_.failures())});
  metrics.push_back({"redis_stalls_total", Kind::counter,
                     "Connections given up because Redis did not answer for a second.",
                     number(stalls_total_)});
  metrics.push_back({"redis_clock_jumps_total", Kind::counter,
                     "Steps of Redis's clock beyond what measuring it can explain.", number(clock_.jumps())});
  metrics.push_back({"redis_clock_uncertainty_seconds", Kind::gauge,
                     "Bound of the error of the measured clock offset.",
                     number(clock_.uncertainty(loop_.now()).count()) / 1e6});
}

}  // namespace allowd::store
