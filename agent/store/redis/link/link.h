// SPDX-License-Identifier: MIT
//
// Keeps a connection to one Redis server ready: signs in, loads the script, measures the server's clock, and
// does it all over when the connection ends.
//
// Reconnecting   At once, then after a random wait up to a bound that doubles to `reconnect_max` ("full
//                jitter", Brooker 2015), so that a fleet does not come back as one; never more than three
//                times a second. Where the server refuses who we are or what we do, after 30 s to 60 s: only
//                a person can change that. Another password in the password file ends that wait.
// Renewing       A connection older than `max_connection_age` is replaced by a new one, which is made ready
//                first; what was asked on the old one is still answered there. So is one to a master that has
//                been replaced, about a second after its source finds another.
// A server that does not answer   After a second without an answer the link counts as down and connects
//                anew, but keeps listening on the old connection for a while: what was sent there may still
//                be decided, and a late grant has to be given back.
// Logging        One line per change of state, one reminder a minute while down. Never a password.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>

#include "agent/loop/timer.h"
#include "agent/store/redis/link/attempt.h"
#include "agent/store/redis/link/connection.h"
#include "agent/store/redis/link/endpoint_source.h"
#include "agent/store/redis/link/password_watch.h"
#include "agent/store/redis/link/server_watch.h"
#include "agent/store/redis/link/shard_clock.h"

namespace allowd::store {

class Link {
 public:
  struct Options {
    std::unique_ptr<EndpointSource> source;  // never null
    // Counts the epochs of all links between which keys may move, so that no two are alike; never null.
    std::shared_ptr<std::uint32_t> epochs = std::make_shared<std::uint32_t>(0);
    std::shared_ptr<TlsMaterial> tls;  // not null if the source may find an endpoint that wants it
    std::string label;                 // for the log, beside the URL; may be empty
    limiter::Micros reconnect_max = std::chrono::seconds(2);
    limiter::Micros max_connection_age{0};  // within 10 %; 0: no bound
    limiter::Micros deadline{0};            // of queries; a server that needs half of it is slow; 0: none is
    ClockSource clock = ClockSource::synced;
    std::string_view script;  // static
    std::uint64_t random_seed = 0;
  };

  Link(loop::Loop& loop, Options options);

  // Begins to connect.
  void start();

  [[nodiscard]] bool is_up() const { return is_up_; }
  // Expects is_up().
  [[nodiscard]] Connection& connection() { return *connection_; }
  [[nodiscard]] const std::string& script_sha() const { return script_sha_; }
  [[nodiscard]] const ShardClock& clock() const { return clock_; }
  // Whether scripts ask for the time themselves.
  [[nodiscard]] bool scripts_tell_time() const { return options_.clock == ClockSource::redis; }
  // Another number whenever times that the clock told before mean nothing any more, and never another link's.
  [[nodiscard]] std::uint32_t epoch() const { return epoch_; }
  // Whether this server has PEXPIRE NX, and so counters need no script.
  [[nodiscard]] bool counts_without_script() const { return server_.major_version >= 7; }
  // On this connection a transaction has failed.
  void stop_transactions() { server_.major_version = 0; }

  // Why it is not up, as of when; expects that it is not.
  [[nodiscard]] const std::string& why_down() const { return why_down_; }
  [[nodiscard]] SteadyTime why_down_at() const { return why_down_at_; }

  // Another number for each server that is connected to, as far as its data goes; 0: none was. The same one
  // again keeps its number, unless it does not say who it is.
  [[nodiscard]] std::uint32_t incarnation() const { return incarnation_; }
  // Called when another one is connected to than before, before anything is sent there.
  void set_on_other_server(std::function<void()> on_other) { on_other_server_ = std::move(on_other); }
  // Expects is_up(). Whether the server still is a master of the data that it had when it was connected to;
  // false also where it does not say. Calls `done` later, once.
  void ask_if_still_master(std::function<void(bool)> done);
  // For people; without passwords.
  [[nodiscard]] std::string url() const { return options_.source->display(); }
  // The same for the log.
  [[nodiscard]] const std::string& name() const { return name_; }

  // Loads the script anew, ahead of everything that is sent afterwards.
  void reload_script();
  // A script about `key` was refused for want of a permission: finds out which, for the log, once in a while.
  void explain_refusal(std::string_view key);
  // The server cannot be used as it is: leave it and connect anew.
  void drop(Error why);
  // Something was sent that has to be answered.
  void watch_for_stall();

  // Until the next attempt, or the end of the one under way; at least 1 µs.
  [[nodiscard]] limiter::Micros next_attempt_in(SteadyTime now) const;

  // Called with every reminder; returns what else there is to say.
  void set_reminder(std::function<std::string()> reminder) { reminder_ = std::move(reminder); }

  // Called whenever the link has come up.
  void set_on_up(std::function<void()> on_up) { on_up_ = std::move(on_up); }

  void collect(std::vector<stats::Metric>& metrics) const;

 private:
  void connect();
  void begin_attempt();
  void take_over(Attempt::Ready ready);
  void adopt_clock(std::span<const ClockReading> readings);
  void come_up();
  void report_up();
  void go_down(const Refusal& refusal);
  void report_down(const Refusal& refusal);
  void schedule_attempt(bool is_refused);
  void attempt_in(limiter::Micros wait);
  void watch_password();
  // Moves to another server if the source finds one.
  void schedule_following();
  void follow();
  void schedule_renewal(limiter::Micros about);
  void measure_clock();
  // Listens on for what was asked there.
  void retire(std::unique_ptr<Connection> connection);
  [[nodiscard]] limiter::Micros random_between(limiter::Micros least, limiter::Micros most);
  void report_look_up();
  void check_for_stall();
  void end_draining();

  loop::Loop& loop_;
  Options options_;
  std::string name_;  // for the log
  loop::AddressBook addresses_;
  PasswordFile password_file_;
  PasswordWatch password_watch_;
  std::unique_ptr<Attempt> attempt_;  // under way, or the last one
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<Connection> draining_;  // stalled or too old; kept for its late replies
  SteadyTime drained_by_{};
  ServerWatch watch_;
  ShardClock clock_;
  std::uint32_t epoch_ = 0;
  std::string script_sha_;
  ServerIdentity server_;
  std::uint32_t incarnation_ = 0;
  bool is_up_ = false;
  bool is_flapping_ = false;  // what came up last has not lasted: no lines for every time
  bool has_reported_down_ = false;
  bool has_reported_refusal_ = false;
  bool is_renewal_failing_ = false;
  bool has_reported_look_up_ = false;
  std::uint64_t generation_ = 0;  // of connection_; an older one's end is not the link's
  std::uint64_t attempts_ = 0;    // since the link was up
  std::uint64_t attempts_total_ = 0;
  std::uint64_t connects_total_ = 0;
  std::uint64_t stalls_total_ = 0;
  std::uint64_t renewals_total_ = 0;
  SteadyTime attempted_at_{};
  SteadyTime next_attempt_at_{};
  SteadyTime up_since_{};
  SteadyTime down_since_{};
  std::string why_down_ = "not connected yet";
  SteadyTime why_down_at_{};
  std::optional<SteadyTime> explained_at_;
  std::mt19937_64 random_;
  std::function<std::string()> reminder_;
  std::function<void()> on_up_;
  std::function<void()> on_other_server_;
  loop::Timer attempt_timer_;
  loop::Timer clock_timer_;
  loop::Timer stall_timer_;
  loop::Timer drain_timer_;
  loop::Timer renewal_timer_;
  loop::Timer follow_timer_;
  loop::Timer watch_timer_;
  loop::Timer reminder_timer_;
};

}  // namespace allowd::store
