// SPDX-License-Identifier: MIT
#include "agent/io/server.h"

#include <algorithm>
#include <utility>

#include "agent/io/admin_session.h"

namespace allowd::io {
namespace {

constexpr auto kStuckCheckEvery = std::chrono::seconds(5);
constexpr auto kForgottenAfter = std::chrono::seconds(1);  // of an admin's silence
constexpr auto kRoomCheckEvery = std::chrono::milliseconds(100);
// Waking a client that waits for its replies can take the kernel longer than answering it took: clients
// beyond this wait for the next turn, so that no number of them makes one long.
constexpr auto kSendingPerTurn = std::chrono::microseconds(300);
constexpr auto kDrainFor = std::chrono::seconds(5);
constexpr auto kLastWords = std::chrono::seconds(1);
constexpr auto kDrainCheckEvery = std::chrono::milliseconds(10);

bool is_app(const Session& session) { return dynamic_cast<const AppSession*>(&session) != nullptr; }

}  // namespace

Server::Server(loop::Loop& loop, const Options& options, decide::Decider& decider,
               const admin::Reporter& reporter, admin::Commands& commands)
    : loop_(loop),
      options_(options),
      decider_(decider),
      reporter_(reporter),
      commands_(commands),
      drain_timer_(loop),
      stuck_timer_(loop),
      room_timer_(loop) {
  loop.at_turn_end([this] { end_turn(); });
}

Failure Server::open() {
  auto app = UnixListener::open(loop_, options_.app, [this] { accept_apps(); });
  if (!app) return std::move(app.error());
  auto admin = UnixListener::open(loop_, options_.admin, [this] { accept_admins(); });
  if (!admin) return std::move(admin.error());
  app_listener_ = std::move(*app);
  admin_listener_ = std::move(*admin);
  return {};
}

Session& Server::adopt(std::unique_ptr<Session> session) {
  Session& adopted = *session;
  sessions_.emplace(&adopted, std::move(session));
  return adopted;
}

void Server::accept_apps() {
  // What is not accepted waits in the kernel, and libuv announces nothing more until it is.
  if (app_connections_ >= options_.max_connections) {
    if (!std::exchange(has_waiting_app_, true)) ++full_total_;
    return;
  }
  auto session = std::make_unique<AppSession>(loop_, *this, decider_, reporter_, app_);
  if (!session->accept_from(app_listener_->raw())) return;
  adopt(std::move(session));
  ++app_connections_;
  ++accepted_total_;
  watch_for_stuck();
}

void Server::accept_admins() {
  if (admin_connections_ >= kMaxAdminConnections) {
    has_waiting_admin_ = true;
    return make_room_for_admin();
  }
  auto session = std::make_unique<AdminSession>(loop_, *this, commands_);
  if (!session->accept_from(admin_listener_->raw())) return;
  adopt(std::move(session));
  ++admin_connections_;
  watch_for_stuck();
}

void Server::make_room_for_admin() {
  // Forgotten clients must not keep out who has something to ask; one that has just come, or just had an
  // answer, is none.
  AdminSession* idlest = nullptr;
  for (const auto& [session, owned] : sessions_) {
    auto* admin = dynamic_cast<AdminSession*>(session);
    if (admin == nullptr || !admin->is_idle()) continue;
    if (idlest == nullptr || admin->last_active() < idlest->last_active()) idlest = admin;
  }
  if (idlest != nullptr && loop_.now() - idlest->last_active() >= kForgottenAfter)
    return idlest->end(Session::End::by_us);
  room_timer_.once(kRoomCheckEvery, [this] {
    if (has_waiting_admin_) make_room_for_admin();
  });
}

void Server::end_turn() {
  const auto now = loop_.now();
  decider_.expire(now);
  flush();
  decider_.end_turn(now, loop::Loop::exact_now());
  // Resuming may serve requests: their replies and questions leave at the end of the next turn, which must
  // not wait.
  if (!to_resume_.empty()) loop_.run_another_turn();
  for (Session* session : std::exchange(to_resume_, {})) session->resume();
  bury();
  if (const auto deadline = decider_.next_deadline()) loop_.wake_by(*deadline);
}

void Server::flush() {
  const auto began = loop::Loop::exact_now();
  const auto sessions = std::exchange(to_flush_, {});
  auto next = sessions.begin();
  while (next != sessions.end()) {
    (*next++)->flush();
    if (loop::Loop::exact_now() - began > kSendingPerTurn) break;
  }
  to_flush_.insert(to_flush_.begin(), next, sessions.end());
  if (!to_flush_.empty()) loop_.run_another_turn();
}

void Server::bury() {
  for (Session* session : std::exchange(retired_, {})) {
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) continue;
    // A session retires when it ends, and once more when its last query was answered.
    if (session->open_queries() > 0) continue;
    violations_total_ += session->end_reason() == Session::End::violation ? 1 : 0;
    overflowed_total_ += session->end_reason() == Session::End::overflowed ? 1 : 0;
    --(is_app(*session) ? app_connections_ : admin_connections_);
    std::erase(to_resume_, session);
    std::erase(to_flush_, session);
    sessions_.erase(found);
    if (is_draining()) continue;
    // There is room again for whoever waits.
    if (app_connections_ < options_.max_connections && std::exchange(has_waiting_app_, false)) accept_apps();
    if (admin_connections_ < kMaxAdminConnections && std::exchange(has_waiting_admin_, false))
      accept_admins();
  }
}

void Server::watch_for_stuck() {
  if (!stuck_timer_.is_running()) stuck_timer_.every(kStuckCheckEvery, [this] { check_stuck(); });
}

void Server::check_stuck() {
  for (const auto& [session, owned] : sessions_) {
    if (session->is_stuck()) session->end(Session::End::overflowed);
  }
  if (sessions_.empty()) stuck_timer_.stop();
}

void Server::drain(std::function<void()> done) {
  if (is_draining()) return;
  on_drained_ = std::move(done);
  app_listener_.reset();
  admin_listener_.reset();
  room_timer_.stop();
  drain_until_ = loop_.now() + kDrainFor;
  // At least one more turn, so that what has arrived by now gets an answer.
  drain_timer_.every(kDrainCheckEvery, [this] { try_to_finish(); });
}

void Server::try_to_finish() {
  const loop::SteadyTime now = loop_.now();
  const bool is_late = now >= drain_until_;
  if (is_late) decider_.expire_all(now);
  const bool is_idle = decider_.open_queries() == 0 &&
                       std::none_of(sessions_.begin(), sessions_.end(),
                                    [](const auto& entry) { return entry.first->has_unsent(); });
  // Whoever does not read its replies gets a last second.
  if (!is_idle && now < drain_until_ + kLastWords) return;
  drain_timer_.stop();
  stuck_timer_.stop();
  for (const auto& [session, owned] : sessions_) session->end(Session::End::by_us);
  on_drained_();
}

void Server::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  const auto add = [&](std::string name, Kind kind, std::string help, std::uint64_t value) {
    metrics.push_back({std::move(name), kind, std::move(help), static_cast<double>(value)});
  };
  add("connections", Kind::gauge, "Clients connected to the application socket.", app_connections_);
  add("connections_max", Kind::gauge, "Clients that may be connected; more wait in the kernel.",
      options_.max_connections);
  add("connections_accepted_total", Kind::counter, "Clients accepted.", accepted_total_);
  add("connections_full_total", Kind::counter, "Times that a client had to wait to be accepted.",
      full_total_);
  add("connections_violating_total", Kind::counter, "Connections closed for breaking the protocol.",
      violations_total_);
  add("connections_overflowed_total", Kind::counter, "Connections closed because the client did not read.",
      overflowed_total_);
  add("requests_total", Kind::counter, "Requests read.", app_.requests);
  add("requests_refused_total", Kind::counter, "Requests answered with an error.", app_.refusals);
  add("requests_overloaded_total", Kind::counter,
      "Queries refused because their connection had too many open.", app_.overloads);
  add("notifications_total", Kind::counter, "Notifications, which are ignored.", app_.notifications);
}

}  // namespace allowd::io
