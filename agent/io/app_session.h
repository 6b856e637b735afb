// SPDX-License-Identifier: MIT
//
// A client on the application socket: MessagePack-RPC.
#pragma once

#include <list>
#include <optional>

#include <cstdint>

#include "agent/admin/reporter.h"
#include "agent/decide/decider.h"
#include "agent/decide/many.h"
#include "agent/io/session.h"

namespace allowd::io {

// What all application sessions count together.
struct AppCounters {
  std::uint64_t requests = 0;
  std::uint64_t refusals = 0;       // requests answered with an error
  std::uint64_t notifications = 0;  // ignored
  std::uint64_t overloads = 0;      // queries refused because their connection had too many open
};

class AppSession final : public Session, public decide::Asker {
 public:
  // Queries of one connection that may wait for the store; more are `overloaded`.
  static constexpr std::size_t kMaxOpenQueries = 4096;

  AppSession(loop::Loop& loop, SessionHost& host, decide::Decider& decider, const admin::Reporter& reporter,
             AppCounters& counters)
      : Session(loop, host), decider_(decider), reporter_(reporter), counters_(counters) {}

  [[nodiscard]] std::size_t open_queries() const override { return open_queries_; }
  void on_decision(std::uint64_t msgid, const protocol::Decision& decision) override;

 private:
  // What stays as it is while one read is served.
  struct Turn {
    loop::SteadyTime now;
    bool is_draining;
  };

  std::size_t serve(std::span<const std::byte> bytes) override;
  void serve_request(const protocol::Request& request, const Turn& turn);
  // In line for the usual ones.
  [[gnu::always_inline]] void serve_query(const protocol::Request& request, limiter::Operation operation,
                                          decide::Found& found, loop::SteadyTime now);
  void serve_many(const protocol::Request& request, loop::SteadyTime now);
  // A reply that had been owed was written, or its client has gone.
  void after_answer();
  void refuse(std::uint64_t msgid, protocol::ErrorCode code, std::string_view reason);

  decide::Decider& decider_;
  const admin::Reporter& reporter_;
  AppCounters& counters_;
  std::size_t open_queries_ = 0;
  std::list<std::optional<decide::Many>> many_;  // that wait for the store
};

}  // namespace allowd::io
