// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/connection.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace allowd::store {
namespace {

// Of connecting, for all addresses but the last together, and for each at least.
constexpr limiter::Micros kForAddresses = std::chrono::milliseconds(400);
constexpr limiter::Micros kForEachAddress = std::chrono::milliseconds(50);

// Of a turn, for replies that arrived together: each may answer hundreds of queries. The rest waits for the
// next turn.
constexpr limiter::Micros kRepliesPerTurn{300};
constexpr limiter::Micros kAllAtOnce = limiter::Micros::max();

Error from_uv(std::string_view doing, int status) {
  return Error{Error::Code::retry_later, uv_strerror(status)}.within(doing);
}

}  // namespace

Connection::Connection(loop::Loop& loop, const RedisEndpoint& endpoint, OnClosed on_closed,
                       const ReplyReader::Caps& caps)
    : loop_(loop),
      endpoint_(endpoint),
      on_closed_(std::move(on_closed)),
      address_timer_(loop),
      handshake_(loop),
      reader_(caps),
      next_turn_(loop) {}

Connection::~Connection() {
  if (asked_ != nullptr) asked_->forget();
}

void Connection::prepare(std::function<void()> done) {
  if (!endpoint_.is_tls) return done();
  assert(tls_material_ != nullptr);
  tls_wish_ = tls_material_->read([this, done = std::move(done)](const Result<tls::TlsContext>& context) {
    if (!context) return close(Error(context.error()).within("TLS"));
    tls_ = std::make_shared<tls::TlsSession>(*context, tls_material_->server_name(endpoint_.host));
    done();
  });
}

void Connection::open(loop::AddressBook& addresses, std::function<void()> done) {
  assert(endpoint_.is_tls == (tls_ != nullptr));
  on_open_ = std::move(done);
  book_ = &addresses;
  if (!endpoint_.unix_path.empty()) {
    stream_ = std::make_unique<loop::Stream>(loop_, loop::Stream::Family::unix_socket, *this);
    return stream_->connect_unix(endpoint_.unix_path, [this](int status) {
      status == 0 ? on_connected() : close(from_uv("connect", status));
    });
  }
  asked_ = book_;
  book_->find(endpoint_.host, endpoint_.port, [this](loop::AddressBook::Found found) {
    asked_ = nullptr;
    on_found(std::move(found));
  });
}

void Connection::on_found(loop::AddressBook::Found found) {
  if (found.status != 0) return close(from_uv("resolve " + endpoint_.host, found.status));
  look_up_status_ = found.look_up_status;
  addresses_ = std::move(found.addresses);
  try_next_address(UV_EAI_NODATA);
}

void Connection::try_next_address(int last_status) {
  address_timer_.stop();
  if (next_address_ >= addresses_.size()) return close(from_uv("connect", last_status));
  stream_ = std::make_unique<loop::Stream>(loop_, loop::Stream::Family::tcp, *this);
  const auto* address = reinterpret_cast<const sockaddr*>(&addresses_[next_address_++]);
  if (next_address_ < addresses_.size()) {
    const auto share = kForAddresses / static_cast<std::int64_t>(addresses_.size() - 1);
    address_timer_.once(std::max(share, kForEachAddress), [this] { try_next_address(UV_ETIMEDOUT); });
  }
  stream_->connect_tcp(address,
                       [this](int status) { status == 0 ? on_connected() : try_next_address(status); });
}

void Connection::on_connected() {
  address_timer_.stop();
  is_shaking_hands_ = tls_ != nullptr;
  if (is_shaking_hands_) return shake_hands({});
  stream_->start_reading();
  on_ready();
}

// What the other thread works on.
struct Connection::Flight {
  std::vector<std::byte> bytes;  // none: the handshake begins
  ByteBuffer encrypted;
  ByteBuffer decrypted;
  Failure problem;
};

void Connection::shake_hands(std::span<const std::byte> bytes) {
  stream_->stop_reading();  // so that there is never more than one flight, nor more to keep
  auto flight = std::make_shared<Flight>();
  flight->bytes.assign(bytes.begin(), bytes.end());
  handshake_.start(
      [flight, session = tls_] {
        flight->problem = flight->bytes.empty()
                              ? session->start(flight->encrypted)
                              : session->receive(flight->bytes, flight->decrypted, flight->encrypted);
        tls::release_thread();
      },
      [this, flight] { on_flight(*flight); });
}

void Connection::on_flight(Flight& flight) {
  if (is_closed_) return;
  is_shaking_hands_ = !tls_->is_ready();
  encrypted_ = std::move(flight.encrypted);
  decrypted_ = std::move(flight.decrypted);
  if (!is_shaking_hands_) on_ready();
  on_opened(std::move(flight.problem));
  if (!is_closed_) stream_->start_reading();
}

void Connection::on_ready() {
  if (auto done = std::exchange(on_open_, nullptr)) done();
}

void Connection::expect(OnReply on_reply, std::size_t replies_before) {
  expected_.push_back({std::move(on_reply), loop_.now(), replies_before});
}

void Connection::flush() {
  if (!stream_) return;
  if (!tls_) return stream_->write(outbox_);
  auto problem = tls_->send(outbox_.view(), encrypted_);
  outbox_.clear();
  stream_->write(encrypted_);
  if (problem) close(std::move(*problem).within("TLS"));
}

std::size_t Connection::on_bytes(std::span<const std::byte> bytes) {
  has_heard_ = true;
  if (is_shaking_hands_) {
    shake_hands(bytes);
  } else if (tls_) {
    on_opened(tls_->receive(bytes, decrypted_, encrypted_));
  } else {
    on_plain({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  return bytes.size();
}

void Connection::on_opened(Failure problem) {
  // Who gets a reply may send; that goes behind what TLS itself has to say.
  if (!decrypted_.empty()) on_plain(decrypted_.view());
  decrypted_.clear();
  if (problem) read_replies(kAllAtOnce);
  if (is_closed_) return;
  stream_->write(encrypted_);
  if (problem) {
    is_shaking_hands_ = false;  // it is over, and the reason is known
    return close(std::move(*problem).within("TLS"));
  }
  if (tls_->has_ended()) on_end(UV_EOF);
}

void Connection::on_plain(std::string_view bytes) {
  if (is_closed_) return;
  if (auto problem = reader_.feed(bytes)) return close(std::move(*problem));
  read_replies(kRepliesPerTurn);
}

void Connection::read_replies(limiter::Micros at_most) {
  next_turn_.stop();
  const SteadyTime begun = loop::Loop::exact_now();
  while (!is_closed_) {
    if (at_most != kAllAtOnce && loop::Loop::exact_now() - begun > at_most) {
      // Nothing more is read meanwhile, so that there is never more to keep than one read has brought.
      stream_->stop_reading();
      return next_turn_.call([this] {
        read_replies(kRepliesPerTurn);
        if (!is_closed_ && !next_turn_.is_waiting()) stream_->start_reading();
      });
    }
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
      ++round_trips_.all;
      if (loop_.now() - expected_.front().sent > slow_after_) ++round_trips_.slow;
      const OnReply on_reply = std::move(expected_.front().on_reply);
      expected_.pop_front();
      on_reply(std::move(*reply));
    }
  }
}

void Connection::on_end(int status) {
  read_replies(kAllAtOnce);
  if (is_closed_) return;
  Error why = from_uv("connection", status);
  if (!has_heard_ && !tls_ && endpoint_.unix_path.empty() && (status == UV_EOF || status == UV_ECONNRESET))
    why.message += " before any answer; a port for TLS needs rediss://";
  close(std::move(why));
}

void Connection::close(Error why) {
  if (std::exchange(is_closed_, true)) return;
  tls_wish_.reset();
  if (auto* asked = std::exchange(asked_, nullptr)) asked->forget();
  address_timer_.stop();
  next_turn_.stop();
  if (is_shaking_hands_) {
    why = std::move(why).within("TLS");
    if (!has_heard_) why.message += "; a port without TLS needs redis://";
  } else if (tls_ && stream_) {
    tls_->close(encrypted_);
    stream_->write(encrypted_);
  }
  stream_.reset();
  outbox_.clear();
  const auto unanswered = std::exchange(expected_, {});
  for (const Expected& expected : unanswered) expected.on_reply(nullptr);
  // A copy, since it may set another one.
  const OnClosed on_closed = on_closed_;
  on_closed(std::move(why));
}

}  // namespace allowd::store
