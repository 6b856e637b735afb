// SPDX-License-Identifier: MIT
#include "agent/io/app_session.h"

#include "protocol/reply.h"

namespace allowd::io {

using protocol::ErrorCode;
using protocol::Message;
using protocol::Method;

namespace {

limiter::Operation operation_of(Method method) {
  if (method == Method::peek) return limiter::Operation::peek;
  return method == Method::refund ? limiter::Operation::refund : limiter::Operation::take;
}

}  // namespace

inline void AppSession::serve_query(const protocol::Request& request, limiter::Operation operation,
                                    decide::Found& found, loop::SteadyTime now) {
  if (open_queries_ >= kMaxOpenQueries) {
    ++counters_.overloads;
    return refuse(request.msgid, ErrorCode::overloaded, "4096 queries of this connection wait for the store");
  }
  const auto outcome = decider_.ask(operation, request.query, found, now, *this, request.msgid);
  switch (outcome.kind) {
    case decide::Outcome::Kind::decided:
      return protocol::write_decision(out(), request.msgid, outcome.decision);
    case decide::Outcome::Kind::refused: return refuse(request.msgid, outcome.code, outcome.reason);
    case decide::Outcome::Kind::deferred: ++open_queries_; return;
  }
}

std::size_t AppSession::serve(std::span<const std::byte> bytes) {
  const Turn turn{loop().now(), host().is_draining()};
  const std::size_t most_out = out_bytes_until_pause();
  std::size_t used = 0;
  Message message;
  decide::Found found;  // what the message before was about
  while (used < bytes.size() && out().size() < most_out) {
    protocol::read_message(bytes.subspan(used), message);
    if (message.is_usual && !turn.is_draining) {
      ++counters_.requests;
      if (!message.is_repeated) found.limit = nullptr;
      serve_query(message.request, limiter::Operation::take, found, turn.now);
      used += message.size;
      continue;
    }
    switch (message.kind) {
      case Message::Kind::request: serve_request(message.request, turn); break;
      case Message::Kind::notification: ++counters_.notifications; break;
      case Message::Kind::incomplete: return used;
      case Message::Kind::violation: end(End::violation); return used;
    }
    if (message.ends_stream) {
      finish();
      return used;
    }
    used += message.size;
  }
  return used;
}

void AppSession::serve_request(const protocol::Request& request, const Turn& turn) {
  ++counters_.requests;
  if (request.refusal) return refuse(request.msgid, request.refusal->code, request.refusal->reason);
  if (turn.is_draining) return refuse(request.msgid, ErrorCode::shutting_down, "the agent is stopping");
  switch (request.method) {
    case Method::allow:
    case Method::peek:
    case Method::refund: {
      decide::Found found;
      return serve_query(request, operation_of(request.method), found, turn.now);
    }
    case Method::allow_many: return serve_many(request, turn.now);
    case Method::ping: return protocol::write_pong(out(), request.msgid);
    case Method::info: return protocol::write_report(out(), request.msgid, reporter_.info(turn.now));
    case Method::stats: return protocol::write_report(out(), request.msgid, reporter_.stats());
    case Method::other:
      return refuse(request.msgid, ErrorCode::unknown_method, "no such method on this socket");
  }
}

void AppSession::serve_many(const protocol::Request& request, loop::SteadyTime now) {
  if (open_queries_ + request.items.size() > kMaxOpenQueries) {
    ++counters_.overloads;
    return refuse(request.msgid, ErrorCode::overloaded, "4096 queries of this connection wait for the store");
  }
  const auto place = many_.emplace(many_.end());
  place->emplace(decider_, [this, place, msgid = request.msgid, items = request.items.size()] {
    open_queries_ -= items;
    if (!has_ended()) protocol::write_decisions(out(), msgid, (*place)->decisions());
    many_.erase(place);
    after_answer();
  });
  decide::Many& many = **place;
  switch (many.start(request.items, request.all_or_none, now)) {
    case decide::Outcome::Kind::decided:
      protocol::write_decisions(out(), request.msgid, many.decisions());
      break;
    case decide::Outcome::Kind::refused:
      refuse(request.msgid, many.refusal().code, many.refusal().reason);
      break;
    case decide::Outcome::Kind::deferred: open_queries_ += request.items.size(); return;
  }
  many_.erase(place);
}

void AppSession::after_answer() {
  if (has_ended()) {
    if (open_queries_ == 0) host().retire(*this);
    return;
  }
  has_replied();
}

void AppSession::on_decision(std::uint64_t msgid, const protocol::Decision& decision) {
  --open_queries_;
  if (!has_ended()) protocol::write_decision(out(), msgid, decision);
  after_answer();
}

void AppSession::refuse(std::uint64_t msgid, ErrorCode code, std::string_view reason) {
  ++counters_.refusals;
  protocol::write_error(out(), msgid, code, reason);
}

}  // namespace allowd::io
