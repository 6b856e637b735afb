// SPDX-License-Identifier: MIT
//
// One connected client, whatever it speaks: bytes in, replies gathered during a turn and sent with one write
// at its end, and bounds on what a client may make us keep.
//
// A client that does not read   Past kPauseBytes of unsent replies its requests are no longer read; past
//                               kMaxOutBytes, or after ten seconds without taking a byte, its connection is
//                               closed.
// A client that floods          Is read from in turn with the others; see Loop::may_read.
//
// Ownership  The host owns sessions. One that has ended but still waits for answers lives until they have
// come.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "agent/loop/stream.h"
#include "protocol/byte_buffer.h"

namespace allowd::io {

class Session;

// What the server does for its sessions.
class SessionHost {
 public:
  virtual void flush_at_turn_end(Session& session) = 0;
  virtual void resume_after_turn(Session& session) = 0;
  // The session has ended. It is destroyed after the turn in which it has no open queries any more.
  virtual void retire(Session& session) = 0;
  [[nodiscard]] virtual bool is_draining() const = 0;

 protected:
  ~SessionHost() = default;
};

class Session : public loop::StreamEvents {
 public:
  static constexpr std::size_t kPauseBytes = 64 * 1024;
  static constexpr std::size_t kMaxOutBytes = 4 * 1024 * 1024;

  enum class End : std::uint8_t {
    none,        // still open
    by_peer,     // closed or broken by the other side
    by_us,       // after a last reply, or at shutdown
    violation,   // lost framing, or malformed
    overflowed,  // did not read its replies
  };

  Session(loop::Loop& loop, SessionHost& host);
  virtual ~Session() = default;

  // Takes the connection that waits at `listener`, and begins to read.
  [[nodiscard]] bool accept_from(uv_stream_t* listener);

  // Sends what has gathered.
  void flush();
  // Goes on after a pause, if replies have left by now.
  void resume();
  // Reads no more, and ends the connection once every open query was answered and everything was sent.
  void finish();
  void end(End reason);

  [[nodiscard]] bool has_ended() const { return end_ != End::none; }
  [[nodiscard]] End end_reason() const { return end_; }
  [[nodiscard]] bool has_unsent() const { return !out_.empty() || (stream_ && stream_->queued_bytes() > 0); }
  // True while nothing more may be served, because an answer has to come first.
  [[nodiscard]] virtual bool is_busy() const { return false; }
  // Queries whose answers are still to come.
  [[nodiscard]] virtual std::size_t open_queries() const = 0;
  // True when the client has kept us from sending since the last call.
  [[nodiscard]] bool is_stuck();

 protected:
  // Serves what it can of the front of `bytes` and says how much that was. Stops early when `must_pause()`.
  virtual std::size_t serve(std::span<const std::byte> bytes) = 0;

  // Unsent bytes beyond which the client is taken for one that does not read.
  [[nodiscard]] virtual std::size_t most_unsent_bytes() const { return kMaxOutBytes; }
  // Ends the connection if it is finishing and nothing is left to do.
  void end_if_done();
  [[nodiscard]] bool must_pause() const {
    return has_ended() || is_finishing_ || is_busy() || unsent_bytes() >= kPauseBytes;
  }
  // The same for who asks so often that it counts: up to which size of out() more may be served, as long as
  // the session neither ends, finishes nor sends anything.
  [[nodiscard]] std::size_t out_bytes_until_pause() const {
    return must_pause() ? 0 : kPauseBytes - stream_->queued_bytes();
  }
  [[nodiscard]] protocol::ByteBuffer& out() { return out_; }
  [[nodiscard]] loop::Loop& loop() { return loop_; }
  [[nodiscard]] SessionHost& host() { return host_; }
  // Something was appended to out().
  void has_replied();

 private:
  std::size_t on_bytes(std::span<const std::byte> bytes) final;
  void on_end(int status) final;
  void on_drained() final;
  [[nodiscard]] std::size_t unsent_bytes() const { return out_.size() + stream_->queued_bytes(); }

  loop::Loop& loop_;
  SessionHost& host_;
  std::unique_ptr<loop::Stream> stream_;
  protocol::ByteBuffer out_;
  std::size_t last_unsent_ = 0;
  bool is_in_flush_list_ = false;
  bool is_paused_ = false;
  bool is_finishing_ = false;
  End end_ = End::none;
};

}  // namespace allowd::io
