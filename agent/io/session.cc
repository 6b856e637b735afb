// SPDX-License-Identifier: MIT
#include "agent/io/session.h"

#include <utility>

namespace allowd::io {

Session::Session(loop::Loop& loop, SessionHost& host)
    : loop_(loop),
      host_(host),
      stream_(std::make_unique<loop::Stream>(loop, loop::Stream::Family::unix_socket, *this)) {}

bool Session::accept_from(uv_stream_t* listener) {
  if (stream_->accept_from(listener) != 0) return false;
  stream_->start_reading();
  return true;
}

std::size_t Session::on_bytes(std::span<const std::byte> bytes) {
  const std::size_t used = serve(bytes);
  if (!out_.empty()) has_replied();
  if (has_ended() || is_finishing_) return bytes.size();  // nobody will look at the rest
  if (must_pause()) {
    is_paused_ = true;
    stream_->stop_reading();
    host_.resume_after_turn(*this);
  }
  return used;
}

void Session::has_replied() {
  if (has_ended() || std::exchange(is_in_flush_list_, true)) return;
  host_.flush_at_turn_end(*this);
}

void Session::flush() {
  is_in_flush_list_ = false;
  if (has_ended()) return;
  stream_->write(out_);
  if (has_ended()) return;
  if (stream_->queued_bytes() > most_unsent_bytes()) return end(End::overflowed);
  // The turn in which it paused may have ended long before.
  if (is_paused_ && !must_pause()) host_.resume_after_turn(*this);
  end_if_done();
}

void Session::end_if_done() {
  if (is_finishing_ && !has_ended() && open_queries() == 0 && !has_unsent()) end(End::by_us);
}

void Session::resume() {
  if (has_ended() || is_finishing_ || !is_paused_ || must_pause()) return;
  is_paused_ = false;
  stream_->reread();
  if (!has_ended() && !is_finishing_ && !is_paused_) stream_->start_reading();
}

void Session::on_drained() {
  if (is_finishing_) return end_if_done();
  host_.resume_after_turn(*this);
}

void Session::finish() {
  if (has_ended() || std::exchange(is_finishing_, true)) return;
  stream_->stop_reading();
  has_replied();
}

void Session::on_end(int status) {
  // Whoever only stopped sending still wants the replies.
  status == UV_EOF ? finish() : end(End::by_peer);
}

void Session::end(End reason) {
  if (has_ended()) return;
  end_ = reason;
  stream_.reset();
  out_.clear(0);
  host_.retire(*this);
}

bool Session::is_stuck() {
  if (has_ended()) return false;
  const std::size_t unsent = stream_->queued_bytes();
  const bool is_stuck = unsent > 0 && unsent >= last_unsent_ && last_unsent_ > 0;
  last_unsent_ = unsent;
  return is_stuck;
}

}  // namespace allowd::io
