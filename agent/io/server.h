// SPDX-License-Identifier: MIT
//
// Both sockets and everybody connected to them.
//
// The order of a turn's end matters and is kept here: expire what has run out of time, let the store send its
// batches (it registers before), then send the sessions their replies, as far as the turn has time for that.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "agent/admin/commands.h"
#include "agent/admin/reporter.h"
#include "agent/decide/decider.h"
#include "agent/io/app_session.h"
#include "agent/io/session.h"
#include "agent/io/unix_listener.h"
#include "agent/loop/timer.h"

namespace allowd::io {

class Server final : public SessionHost, public stats::MetricSource {
 public:
  struct Options {
    UnixListener::Options app;
    UnixListener::Options admin;
    std::size_t max_connections = 1024;  // to the application socket
  };

  Server(loop::Loop& loop, const Options& options, decide::Decider& decider, const admin::Reporter& reporter,
         admin::Commands& commands);

  // Opens both sockets, or neither.
  [[nodiscard]] Failure open();
  // Stops accepting, answers what is in flight (for at most five seconds), closes everything, calls `done`.
  void drain(std::function<void()> done);

  void collect(std::vector<stats::Metric>& metrics) const override;

 private:
  static constexpr std::size_t kMaxAdminConnections = 32;

  void accept_apps();
  void accept_admins();
  void make_room_for_admin();
  void end_turn();
  // Sends the replies of those who have waited longest, for about as long as a turn has for it.
  void flush();
  void watch_for_stuck();
  void check_stuck();
  void try_to_finish();
  void flush_at_turn_end(Session& session) override { to_flush_.push_back(&session); }
  void resume_after_turn(Session& session) override { to_resume_.push_back(&session); }
  void retire(Session& session) override { retired_.push_back(&session); }
  [[nodiscard]] bool is_draining() const override { return on_drained_ != nullptr; }
  void bury();
  Session& adopt(std::unique_ptr<Session> session);

  loop::Loop& loop_;
  Options options_;
  decide::Decider& decider_;
  const admin::Reporter& reporter_;
  admin::Commands& commands_;
  std::unique_ptr<UnixListener> app_listener_;
  std::unique_ptr<UnixListener> admin_listener_;
  std::unordered_map<Session*, std::unique_ptr<Session>> sessions_;
  std::vector<Session*> to_flush_;
  std::vector<Session*> to_resume_;
  std::vector<Session*> retired_;
  std::size_t app_connections_ = 0;
  std::size_t admin_connections_ = 0;
  bool has_waiting_app_ = false;  // in the kernel, until there is room
  bool has_waiting_admin_ = false;
  std::function<void()> on_drained_;
  loop::Timer drain_timer_;
  loop::Timer stuck_timer_;
  loop::Timer room_timer_;
  loop::SteadyTime drain_until_{};

  AppCounters app_;
  std::uint64_t accepted_total_ = 0;
  std::uint64_t violations_total_ = 0;
  std::uint64_t overflowed_total_ = 0;
  std::uint64_t full_total_ = 0;
};

}  // namespace allowd::io
