// SPDX-License-Identifier: MIT
//
// A closed loop: C connections, each with D requests in flight; for every reply that is read one more request
// is written, and all that one read gave leave in one write. One thread, raw epoll, as little work per reply
// as finding its end, so that what is measured is the server.
//
// A `Dialect` says how the peer speaks:
//   Skipper                            finds the end of a reply (ReplyStep advance(span)), then says which
//   slot
//                                      it answers (slot()), whether it is an error (is_error()) and whether
//                                      it lets the query pass (is_allowed())
//   void address(request, slot, now)   writes what differs from request to request into the encoded bytes
//   void sample(reply)                 is shown the last whole reply of each read
//
// Ownership  Owns connections and buffers (one read buffer; per connection room for D requests, never more).
// Threads    One. `stop_requested` may be set by a signal handler.
// Units      Latency is from just before a request's write to just after its reply's read, in nanoseconds.
// Errors     PeerError if the peer closes, breaks the protocol, answers what was not asked, or says nothing
// for
//            five seconds while it owes replies.

#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "endpoint.h"
#include "latency_histogram.h"
#include "request_table.h"

namespace allowd::bench {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

struct LoopPlan {
  std::size_t connections = 1;
  std::size_t depth = 1;
  std::chrono::nanoseconds warmup{0};    // asked and answered, but not measured
  std::chrono::nanoseconds duration{0};  // how long to measure, if there is no count
  std::optional<std::uint64_t> count;    // how many requests to measure; then warmup is zero
  bool writes_each = false;              // one write per request, not one for all that a read made ready
};

struct LoopFigures {
  LatencyHistogram latency;
  std::uint64_t queries = 0;        // replies while measuring
  std::uint64_t total_queries = 0;  // with warm-up and what was still in flight at the end
  std::uint64_t error_replies = 0;  // of the total
  std::uint64_t allowed = 0;        // of `queries`, those that may pass
  std::uint64_t total_allowed = 0;  // of the total
  std::chrono::nanoseconds measured{0};
  std::chrono::nanoseconds own_cpu{0};  // while measuring
};

template <class Dialect>
class ClosedLoop {
 public:
  ClosedLoop(const LoopPlan& plan, RequestTable& requests, Dialect& dialect,
             const volatile std::sig_atomic_t& stop_requested)
      : plan_(plan), requests_(requests), dialect_(dialect), stop_requested_(stop_requested) {}

  // Connects, runs to the end of the plan, waits for every reply that is owed. Call it once.
  LoopFigures run(const Endpoint& endpoint) {
    open_connections(endpoint);
    fresh_.reserve(plan_.depth);
    const TimePoint now = Clock::now();
    phase_ends_ = now + plan_.warmup;
    advance_phase(now);
    for (Connection& connection : connections_) {
      for (std::uint32_t slot = 0; slot < plan_.depth; ++slot) {
        queue_request(connection, slot, now);
      }
      flush(connection);
    }
    while (in_flight_ > 0) {
      turn();
    }
    if (phase_ == Phase::measuring) {
      end_measuring(last_read_);  // a count has been answered
    }
    return figures_;
  }

 private:
  enum class Phase { warming, measuring, draining };

  struct Connection {
    UniqueFd fd;
    typename Dialect::Skipper skipper;
    std::vector<TimePoint> sent_at;  // by slot; kNotAsked when nothing is in flight there
    std::vector<std::byte> output;   // requests not written yet: [written, queued)
    std::size_t written = 0;
    std::size_t queued = 0;
    bool awaits_room = false;
  };

  static constexpr TimePoint kNotAsked{};
  static constexpr std::chrono::milliseconds kPatience{5000};
  static constexpr std::size_t kReadBytes = 64 * 1024;

  static std::chrono::nanoseconds own_cpu() {
    timespec used{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
  }

  void open_connections(const Endpoint& endpoint) {
    epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    connections_.resize(plan_.connections);
    for (std::size_t index = 0; index < connections_.size(); ++index) {
      Connection& connection = connections_[index];
      connection.fd = endpoint.connect();
      connection.sent_at.assign(plan_.depth, kNotAsked);
      connection.output.resize(plan_.depth * requests_.request_bytes());
      watch(EPOLL_CTL_ADD, index, EPOLLIN);
    }
  }

  void watch(int operation, std::size_t index, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = index;
    if (epoll_ctl(epoll_.get(), operation, connections_[index].fd.get(), &event) != 0) {
      throw peer_error_from_errno("epoll_ctl");
    }
  }

  void turn() {
    std::array<epoll_event, 64> events;
    const int ready = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(kPatience.count()));
    if (ready == 0) {
      throw PeerError("the peer owes " + std::to_string(in_flight_) + " replies and sent none for 5 s");
    }
    if (ready < 0 && errno != EINTR) {
      throw peer_error_from_errno("epoll_wait");
    }
    for (int n = 0; n < ready; ++n) {
      Connection& connection = connections_[events[static_cast<std::size_t>(n)].data.u64];
      if ((events[static_cast<std::size_t>(n)].events & EPOLLOUT) != 0) {
        write_out(connection);
      }
      read_replies(connection);
    }
  }

  void read_replies(Connection& connection) {
    const ssize_t received = read(connection.fd.get(), read_buffer_.data(), read_buffer_.size());
    if (received <= 0) {
      if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
      throw received == 0 ? PeerError("the peer closed a connection") : peer_error_from_errno("read");
    }
    const TimePoint now = Clock::now();
    last_read_ = now;
    advance_phase(now);
    std::span<const std::byte> input(read_buffer_.data(), static_cast<std::size_t>(received));
    std::span<const std::byte> last_whole;
    bool is_whole = !connection.skipper.is_inside();
    while (!input.empty()) {
      const ReplyStep step = connection.skipper.advance(input);
      if (step.complete) {
        take_reply(connection, now);
        last_whole = is_whole ? input.first(step.consumed) : last_whole;
        is_whole = true;
      }
      input = input.subspan(step.consumed);
    }
    if (!last_whole.empty()) {
      dialect_.sample(last_whole);
    }
    flush(connection);
  }

  void take_reply(Connection& connection, TimePoint now) {
    const std::uint32_t slot = connection.skipper.slot();
    if (slot >= plan_.depth || connection.sent_at[slot] == kNotAsked) {
      throw PeerError("the peer sent a reply that answers no request in flight");
    }
    ++figures_.total_queries;
    figures_.error_replies += connection.skipper.is_error() ? 1 : 0;
    const std::uint64_t allowed = connection.skipper.is_allowed() ? 1 : 0;
    figures_.total_allowed += allowed;
    if (phase_ == Phase::measuring) {
      ++figures_.queries;
      figures_.allowed += allowed;
      figures_.latency.add(now - connection.sent_at[slot]);
    }
    connection.sent_at[slot] = kNotAsked;
    --in_flight_;
    queue_request(connection, slot, now);
  }

  void queue_request(Connection& connection, std::uint32_t slot, TimePoint now) {
    if (phase_ == Phase::draining || (plan_.count && asked_ == *plan_.count)) return;
    const std::size_t size = requests_.request_bytes();
    if (connection.queued + size > connection.output.size()) {
      make_room(connection);
    }
    std::byte* request = connection.output.data() + connection.queued;
    std::memcpy(request, requests_.next(), size);
    dialect_.address(request, slot, now);
    connection.queued += size;
    fresh_.push_back(slot);
    ++asked_;
    ++in_flight_;
  }

  // There are never more than `depth` unwritten requests, so moving them to the front is always enough.
  static void make_room(Connection& connection) {
    std::memmove(connection.output.data(), connection.output.data() + connection.written,
                 connection.queued - connection.written);
    connection.queued -= connection.written;
    connection.written = 0;
  }

  void flush(Connection& connection) {
    if (fresh_.empty()) return;
    const TimePoint now = Clock::now();
    for (const std::uint32_t slot : fresh_) {
      connection.sent_at[slot] = now;
    }
    fresh_.clear();
    if (!connection.awaits_room) {
      write_out(connection);
    }
  }

  void write_out(Connection& connection) {
    const std::size_t piece = plan_.writes_each ? requests_.request_bytes() : connection.output.size();
    while (connection.written < connection.queued) {
      const std::size_t size = std::min(piece, connection.queued - connection.written);
      const ssize_t sent =
          send(connection.fd.get(), connection.output.data() + connection.written, size, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        throw peer_error_from_errno("write");
      }
      connection.written += static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
      if (sent < static_cast<ssize_t>(size)) break;
    }
    const bool has_rest = connection.written < connection.queued;
    if (!has_rest) {
      connection.written = 0;
      connection.queued = 0;
    }
    if (has_rest != connection.awaits_room) {
      connection.awaits_room = has_rest;
      const auto index = static_cast<std::size_t>(&connection - connections_.data());
      watch(EPOLL_CTL_MOD, index, has_rest ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
  }

  void advance_phase(TimePoint now) {
    if (phase_ == Phase::warming && now >= phase_ends_) {
      phase_ = Phase::measuring;
      measuring_since_ = now;
      cpu_before_ = own_cpu();
      phase_ends_ = plan_.count ? TimePoint::max() : now + plan_.duration;
    }
    const bool is_over = now >= phase_ends_ && phase_ == Phase::measuring;
    if ((is_over || stop_requested_ != 0) && phase_ != Phase::draining) {
      end_measuring(now);
    }
  }

  void end_measuring(TimePoint now) {
    if (phase_ == Phase::measuring) {
      figures_.measured = now - measuring_since_;
      figures_.own_cpu = own_cpu() - cpu_before_;
    }
    phase_ = Phase::draining;
  }

  LoopPlan plan_;
  RequestTable& requests_;
  Dialect& dialect_;
  const volatile std::sig_atomic_t& stop_requested_;

  UniqueFd epoll_;
  std::vector<Connection> connections_;
  std::array<std::byte, kReadBytes> read_buffer_;
  std::vector<std::uint32_t> fresh_;  // slots queued since the last write; of one connection
  std::uint64_t asked_ = 0;
  std::uint64_t in_flight_ = 0;

  Phase phase_ = Phase::warming;
  TimePoint phase_ends_{};
  TimePoint measuring_since_{};
  TimePoint last_read_{};
  std::chrono::nanoseconds cpu_before_{0};
  LoopFigures figures_;
};

}  // namespace allowd::bench
