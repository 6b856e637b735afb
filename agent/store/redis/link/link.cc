// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/link.h"

#include <algorithm>
#include <utility>

#include "agent/log/log.h"
#include "agent/store/redis/link/permission_probe.h"

namespace allowd::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr limiter::Micros kFirstBackoff = milliseconds(250);
constexpr limiter::Micros kBetweenAttempts = milliseconds(340);
constexpr limiter::Micros kStalledAfter = seconds(1);
constexpr limiter::Micros kStallCheckEvery = milliseconds(250);
constexpr limiter::Micros kDrainFor = seconds(30);
constexpr limiter::Micros kClockEvery = seconds(5);
constexpr limiter::Micros kFollowEvery = seconds(1);
constexpr limiter::Micros kReportDownEvery = std::chrono::minutes(1);
// While a person has to change something.
constexpr limiter::Micros kRefusedLeast = seconds(30), kRefusedMost = seconds(60);
// What has ended sooner was not worth a fresh start of the back-off.
constexpr limiter::Micros kProvedGood = seconds(1);
constexpr limiter::Micros kDrainCheckEvery = milliseconds(50);

}  // namespace

Link::Link(loop::Loop& loop, Options options)
    : loop_(loop),
      options_(std::move(options)),
      name_(options_.label.empty() ? url() : options_.label + " (" + url() + ")"),
      addresses_(loop),
      password_file_(loop),
      password_watch_(loop),
      watch_(name_, options_.deadline),
      random_(options_.random_seed),
      attempt_timer_(loop),
      clock_timer_(loop),
      stall_timer_(loop),
      drain_timer_(loop),
      renewal_timer_(loop),
      follow_timer_(loop),
      watch_timer_(loop),
      reminder_timer_(loop) {}

void Link::start() {
  down_since_ = why_down_at_ = loop_.now();
  connect();
}

void Link::connect() {
  ++attempts_;
  password_watch_.stop();
  clock_.forget();
  epoch_ = ++*options_.epochs;
  connection_.reset();
  begin_attempt();
}

void Link::begin_attempt() {
  ++attempts_total_;
  attempted_at_ = loop_.now();
  attempt_ = std::make_unique<Attempt>(
      Attempt::Means{loop_, *options_.source, addresses_, password_file_, options_.tls, options_.script,
                     scripts_tell_time()},
      [this](Attempt::Ready ready) { take_over(std::move(ready)); },
      [this](const Refusal& refusal) {
        if (!is_up_) return go_down(refusal);
        if (!std::exchange(is_renewal_failing_, true)) {
          log::warn("redis {}: the connection is to be replaced and cannot be: {}; it is kept meanwhile",
                    name_, refusal.why.message);
        }
        schedule_renewal(kRefusedMost);
      });
  attempt_->start();
}

void Link::take_over(Attempt::Ready ready) {
  if (is_up_) {
    ++renewals_total_;
    is_renewal_failing_ = false;
    epoch_ = ++*options_.epochs;  // it may be another server
    retire(std::move(connection_));
  }
  connection_ = std::move(ready.connection);
  connection_->set_on_closed([this, generation = ++generation_](Error why) {
    if (generation == generation_) go_down({std::move(why)});
  });
  watch_.begin(*connection_);
  script_sha_ = std::move(ready.script_sha);
  const bool is_other = !ready.server.is_same_as(server_);
  server_ = std::move(ready.server);
  if (is_other && ++incarnation_ > 1 && on_other_server_) on_other_server_();
  adopt_clock(ready.clock);
  report_look_up();
  if (!is_up_) come_up();
  if (options_.max_connection_age > limiter::Micros{0}) schedule_renewal(options_.max_connection_age);
}

void Link::adopt_clock(std::span<const ClockReading> readings) {
  if (options_.clock == ClockSource::host) {
    const auto wall = std::chrono::time_point_cast<limiter::Micros>(std::chrono::system_clock::now());
    const SteadyTime now = loop_.exact_now();
    clock_.add_sample(now, now, limiter::TimePoint{wall.time_since_epoch()});
  } else {
    for (const ClockReading& reading : readings) {
      clock_.add_sample(reading.sent, reading.received, reading.server);
    }
  }
  if (!clock_.finish_round(loop_.now())) return;
  epoch_ = ++*options_.epochs;
  log::warn("redis {}: its clock stepped against ours; jumps so far: {}", name_, clock_.jumps());
}

void Link::come_up() {
  is_up_ = true;
  up_since_ = loop_.now();
  ++connects_total_;
  if (!is_flapping_) report_up();
  // Not at once: a fleet that comes back has other things to ask first.
  watch_timer_.once(kClockEvery, [this] {
    watch_.look(*connection_, loop_.now());
    watch_timer_.every(ServerWatch::kEvery, [this] { watch_.look(*connection_, loop_.now()); });
  });
  clock_timer_.every(kClockEvery, [this] {
    if (std::exchange(is_flapping_, false)) report_up();  // it has lasted
    measure_clock();
    watch_for_stall();  // so that a server that hangs is noticed before a query has to wait for it
  });
  if (options_.source->must_be_master()) schedule_following();
  if (on_up_) on_up_();
}

void Link::report_up() {
  reminder_timer_.stop();
  has_reported_down_ = has_reported_refusal_ = false;
  log::info("redis {}: connected, clock known to {} us", name_, clock_.uncertainty(loop_.now()).count());
}

void Link::explain_refusal(std::string_view key) {
  const SteadyTime now = loop_.now();
  if (!is_up_ || (explained_at_ && now - *explained_at_ < kRefusedLeast)) return;
  explained_at_ = now;
  find_missing_permissions(*connection_, key, [this](const std::vector<std::string>& missing) {
    std::string rules;
    for (const std::string& rule : missing) rules += " " + rule;
    log::warn(
        "redis {}: its user lacks{}; what needs it is asked again in 30 to 60 s only, on_failure decides "
        "meanwhile",
        name_, rules.empty() ? " a permission that a script needs" : rules);
  });
}

void Link::measure_clock() {
  ask_time(*connection_, [this, generation = generation_](const ClockReadings& readings) {
    if (generation != generation_) return;  // of a connection that has been replaced meanwhile
    if (!readings.all.empty()) return adopt_clock(readings.all);
    // A server that is held up tells no time either; the clock runs on.
    if (readings.kind != ServerError::busy) drop(readings.why);
  });
}

void Link::report_look_up() {
  const int status = connection_->look_up_status();
  if (std::exchange(has_reported_look_up_, status != 0) || status == 0) return;
  log::warn("redis {}: its name cannot be looked up ({}): connected by the addresses of before", name_,
            uv_strerror(status));
}

void Link::go_down(const Refusal& refusal) {
  clock_timer_.stop();
  stall_timer_.stop();
  renewal_timer_.stop();
  follow_timer_.stop();
  watch_timer_.stop();
  if (std::exchange(is_up_, false)) {
    down_since_ = loop_.now();
    is_flapping_ = down_since_ - up_since_ < kProvedGood;
    if (!is_flapping_) attempts_ = 0;
    attempt_.reset();  // of a renewal, if any
  }
  report_down(refusal);
  schedule_attempt(refusal.is_lasting);
}

void Link::report_down(const Refusal& refusal) {
  why_down_ = refusal.why.message;
  why_down_at_ = loop_.now();
  const bool is_news = !has_reported_down_ || (refusal.is_lasting && !has_reported_refusal_);
  if (!is_news) return;
  has_reported_refusal_ = refusal.is_lasting;
  log::warn(
      "redis {}: down: {}; {}on_failure decides meanwhile", name_, why_down_,
      refusal.is_lasting ? "that is for a person to change, so it is tried again in 30 to 60 s only; " : "");
  if (std::exchange(has_reported_down_, true)) return;
  reminder_timer_.every(kReportDownEvery, [this] {
    const auto span = std::chrono::duration_cast<seconds>(loop_.now() - down_since_);
    log::warn("redis {}: still down after {} s and {} attempts: {}{}", name_, span.count(), attempts_,
              why_down_, reminder_ ? "; " + reminder_() : "");
  });
}

limiter::Micros Link::random_between(limiter::Micros least, limiter::Micros most) {
  return limiter::Micros{std::uniform_int_distribution<std::int64_t>(least.count(), most.count())(random_)};
}

void Link::schedule_attempt(bool is_refused) {
  limiter::Micros wait{0};
  if (is_refused) {
    wait = random_between(kRefusedLeast, kRefusedMost);
  } else if (attempts_ > 0) {
    limiter::Micros bound = kFirstBackoff;
    for (std::uint64_t i = 1; i < attempts_ && bound < options_.reconnect_max; ++i) bound *= 2;
    wait = random_between(limiter::Micros{0}, std::min(bound, options_.reconnect_max));
  }
  attempt_in(wait);
  if (is_refused) watch_password();
}

void Link::attempt_in(limiter::Micros wait) {
  const SteadyTime now = loop_.now();
  next_attempt_at_ = std::max(now + wait, attempted_at_ + kBetweenAttempts);
  // Never from inside the callback of the connection that has just ended: that one has to be destroyed first.
  attempt_timer_.once(next_attempt_at_ - now, [this] { connect(); });
}

void Link::watch_password() {
  if (!attempt_ || attempt_->endpoint().password_file.empty()) return;
  password_watch_.start(attempt_->endpoint().password_file, attempt_->endpoint().password, [this] {
    log::info("redis {}: the password file has changed", name_);
    attempt_in(limiter::Micros{0});
  });
}

void Link::schedule_renewal(limiter::Micros about) {
  const limiter::Micros wait = random_between(about - about / 10, about + about / 10);
  renewal_timer_.once(std::max(wait, kBetweenAttempts), [this] { begin_attempt(); });
}

void Link::schedule_following() {
  follow_timer_.once(random_between(kFollowEvery - kFollowEvery / 4, kFollowEvery + kFollowEvery / 4),
                     [this] {
                       schedule_following();
                       follow();
                     });
}

void Link::follow() {
  if (attempt_ && !attempt_->is_over()) return;  // which asks the source itself
  options_.source->find([this](Result<RedisEndpoint> found) {
    if (!is_up_ || !found) return;
    const RedisEndpoint& present = connection_->endpoint();
    if (found->host == present.host && found->port == present.port) return;
    log::info("redis {}: moves from {} to {}", name_, present.display(), found->display());
    // Never from inside the source's callback: the attempt asks the source again.
    renewal_timer_.once(limiter::Micros{0}, [this] { begin_attempt(); });
  });
}

void Link::reload_script() {
  Connection& connection = *connection_;
  write_command(connection.outbox(), {"SCRIPT", "LOAD", options_.script});
  connection.expect([&connection](const Reply& reply) {
    if (reply == nullptr || !is_error(reply)) return;
    connection.close(refusal_of(reply, "load the script").why);
  });
}

void Link::ask_if_still_master(std::function<void(bool)> done) {
  write_command(connection_->outbox(), {"INFO", "replication"});
  connection_->expect([server = server_, done = std::move(done)](const Reply& reply) {
    done(server.is_still_master(reply));
  });
  connection_->flush();
  watch_for_stall();
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
  retire(std::move(connection_));
  go_down({{Error::Code::retry_later, "no answer for a second"}});
}

void Link::retire(std::unique_ptr<Connection> connection) {
  end_draining();
  draining_ = std::move(connection);
  drained_by_ = loop_.now() + kDrainFor;
  drain_timer_.every(kDrainCheckEvery, [this] {
    if (draining_->open_commands() == 0 || loop_.now() >= drained_by_) end_draining();
  });
}

void Link::end_draining() {
  drain_timer_.stop();
  if (!draining_) return;
  draining_->close({Error::Code::retry_later, "given up"});
  draining_.reset();
}

limiter::Micros Link::next_attempt_in(SteadyTime now) const {
  const SteadyTime next = attempt_timer_.is_running() ? next_attempt_at_ : attempted_at_ + Attempt::kTimeout;
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
  metrics.push_back({"redis_renewals_total", Kind::counter,
                     "Connections replaced because they had reached max_connection_age, or led to a "
                     "master that was replaced.",
                     number(renewals_total_)});
  metrics.push_back({"redis_slow_replies_total", Kind::counter,
                     "Answers that took longer than half of agent.deadline, as of the last minute's end.",
                     number(watch_.slow_replies())});
  metrics.push_back({"redis_clock_jumps_total", Kind::counter,
                     "Steps of Redis's clock beyond what measuring it can explain.", number(clock_.jumps())});
  metrics.push_back({"redis_clock_uncertainty_seconds", Kind::gauge,
                     "Bound of the error of the measured clock offset.",
                     number(clock_.uncertainty(loop_.now()).count()) / 1e6});
}

}  // namespace allowd::store
