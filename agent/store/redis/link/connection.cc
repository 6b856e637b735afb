// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/connection.h"

#include <utility>

namespace allowd::store {
namespace {

Error from_uv(std::string_view doing, int status) {
  return Error{Error::Code::retry_later, uv_strerror(status)}.within(doing);
}

}  // namespace

Connection::Connection(loop::Loop& loop, const RedisEndpoint& endpoint, OnClosed on_closed)
    : loop_(loop), endpoint_(endpoint), on_closed_(std::move(on_closed)), resolver_(loop) {}

void Connection::open(std::function<void()> done) {
  on_open_ = std::move(done);
  if (!endpoint_.unix_path.empty()) {
    stream_ = std::make_unique<loop::Stream>(loop_, loop::Stream::Family::unix_socket, *this);
    return stream_->connect_unix(endpoint_.unix_path, [this](int status) {
      status == 0 ? on_connected() : close(from_uv("connect", status));
    });
  }
  resolver_.resolve(endpoint_.host, endpoint_.port, [this](int status, loop::Resolver::Addresses addresses) {
    if (status != 0) return close(from_uv("resolve " + endpoint_.host, status));
    addresses_ = std::move(addresses);
    try_next_address(UV_EAI_NODATA);
  });
}

void Connection::try_next_address(int last_status) {
  if (next_address_ >= addresses_.size()) return close(from_uv("connect", last_status));
  stream_ = std::make_unique<loop::Stream>(loop_, loop::Stream::Family::tcp, *this);
  stream_->connect_tcp(reinterpret_cast<const sockaddr*>(&addresses_[next_address_++]),
                       [this](int status) { status == 0 ? on_connected() : try_next_address(status); });
}

void Connection::on_connected() {
  stream_->start_reading();
  if (auto done = std::exchange(on_open_, nullptr)) done();
}

void Connection::expect(OnReply on_reply, std::size_t replies_before) {
  expected_.push_back({std::move(on_reply), loop_.now(), replies_before});
}

void Connection::flush() {
  if (stream_) stream_->write(outbox_);
}

std::size_t Connection::on_bytes(std::span<const std::byte> bytes) {
  if (auto problem = reader_.feed({reinterpret_cast<const char*>(bytes.data()), bytes.size()})) {
    close(std::move(*problem));
    return bytes.size();
  }
  while (!is_closed_) {
    auto reply = reader_.read();
    if (!reply) {
      close(std::move(reply.error()));
    } else if (*reply == nullptr) {
      break;
    } else if (expected_.empty()) {
      close({Error::Code::system, "the server broke the protocol: a reply that nobody asked for"});
    } else if (expected_.front().replies_before > 0) {
      --expected_.front().replies_before;
    } else {
      const OnReply on_reply = std::move(expected_.front().on_reply);
      expected_.pop_front();
      on_reply(std::move(*reply));
    }
  }
  return bytes.size();
}

void Connection::on_end(int status) { close(from_uv("connection", status)); }

void Connection::close(Error why) {
  if (std::exchange(is_closed_, true)) return;
  resolver_.forget();
  stream_.reset();
  outbox_.clear();
  const auto unanswered = std::exchange(expected_, {});
  for (const Expected& expected : unanswered) expected.on_reply(nullptr);
  on_closed_(std::move(why));
}

}  // namespace allowd::store
