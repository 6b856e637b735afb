// SPDX-License-Identifier: MIT
//
// One connection to a Redis server, from looking its name up to its end: commands go out in order, each with
// somebody who wants its reply.
//
// Ownership  May be destroyed at any time, though not from inside a reply's callback; then nobody is called
//            any more.
// Errors     When the connection ends, every command still open gets a null reply, then `on_closed` is
//            called, once. No command is ever sent twice.
// TLS        Stands between the stream and the commands when the endpoint wants it; everything above is
//            unaware of it. The arithmetic of its handshake takes longer than the loop may be held, and runs
//            on another thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "agent/loop/address_book.h"
#include "agent/loop/background_task.h"
#include "agent/loop/next_turn.h"
#include "agent/loop/stream.h"
#include "agent/loop/timer.h"
#include "agent/store/redis/codec/resp.h"
#include "agent/store/redis/link/endpoint.h"
#include "agent/store/redis/link/tls_material.h"
#include "agent/store/store.h"
#include "agent/tls/tls_session.h"

namespace allowd::store {

class Connection final : public loop::StreamEvents {
 public:
  using OnReply = std::function<void(Reply)>;
  using OnClosed = std::function<void(Error)>;

  Connection(loop::Loop& loop, const RedisEndpoint& endpoint, OnClosed on_closed,
             const ReplyReader::Caps& caps = {});
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] const RedisEndpoint& endpoint() const { return endpoint_; }

  // For whoever loses patience with one that is not open yet. Files are read before the server is bothered,
  // by a pool of threads that is busy with others' too: that says nothing about the server. Nor does what the
  // arithmetic of a handshake takes on a slow host: so much more may pass until one over TLS is open.
  static constexpr limiter::Micros kForFiles = std::chrono::seconds(10);
  [[nodiscard]] static constexpr limiter::Micros for_handshake(const RedisEndpoint& endpoint) {
    return endpoint.is_tls ? std::chrono::seconds(1) : std::chrono::seconds(0);
  }

  // What TLS rests on, for an endpoint that wants it. Not null then, and to be called before `prepare`.
  void set_tls(std::shared_ptr<TlsMaterial> material) { tls_material_ = std::move(material); }

  // Reads what TLS rests on, if the endpoint wants it, then calls `done`, maybe before returning. A failure
  // closes instead.
  void prepare(std::function<void()> done);
  // Expects to be prepared. Finds the endpoint's addresses in `addresses`, which outlives the connection, and
  // connects, trying one after the other; then calls `done`. A failure closes instead. Of several addresses
  // each but the last has its share of 400 ms, so that one which swallows packets leaves time for the others.
  void open(loop::AddressBook& addresses, std::function<void()> done);
  // Why the addresses are those of an earlier look-up, as a libuv error; 0 if they are not.
  [[nodiscard]] int look_up_status() const { return look_up_status_; }

  // The place to append one command to; `expect` says who gets its reply. Nothing leaves before `flush`.
  [[nodiscard]] ByteBuffer& outbox() { return outbox_; }
  // `replies_before` come first and are of no interest.
  void expect(OnReply on_reply, std::size_t replies_before = 0);
  void flush();

  // Who is told of the end from now on.
  void set_on_closed(OnClosed on_closed) { on_closed_ = std::move(on_closed); }
  // Ends the connection from this side, as if the peer had.
  void close(Error why);

  // Of commands and their replies, since it was asked for last.
  struct RoundTrips {
    std::uint64_t all = 0;
    std::uint64_t slow = 0;
  };
  // What is slow from now on.
  void count_slower_than(limiter::Micros span) { slow_after_ = span; }
  [[nodiscard]] RoundTrips take_round_trips() { return std::exchange(round_trips_, {}); }

  [[nodiscard]] std::size_t open_commands() const { return expected_.size(); }
  // When the oldest command without a reply was sent; expects open_commands() > 0.
  [[nodiscard]] SteadyTime oldest_open() const { return expected_.front().sent; }

 private:
  struct Expected {
    OnReply on_reply;
    SteadyTime sent;
    std::size_t replies_before;
  };
  struct Flight;

  void on_found(loop::AddressBook::Found found);
  void try_next_address(int last_status);
  void on_connected();
  void on_ready();
  std::size_t on_bytes(std::span<const std::byte> bytes) override;
  void on_end(int status) override;
  void shake_hands(std::span<const std::byte> bytes);
  void on_flight(Flight& flight);
  void on_opened(Failure problem);
  void on_plain(std::string_view bytes);
  void read_replies(limiter::Micros at_most);

  loop::Loop& loop_;
  RedisEndpoint endpoint_;
  OnClosed on_closed_;
  std::function<void()> on_open_;
  loop::AddressBook* book_ = nullptr;   // since `open`
  loop::AddressBook* asked_ = nullptr;  // the same, while it has not answered
  int look_up_status_ = 0;
  loop::Resolver::Addresses addresses_;
  std::size_t next_address_ = 0;
  loop::Timer address_timer_;
  std::unique_ptr<loop::Stream> stream_;
  std::shared_ptr<TlsMaterial> tls_material_;
  TlsMaterial::Wish tls_wish_;            // until it is prepared
  std::shared_ptr<tls::TlsSession> tls_;  // null: plain; the handshake's thread may have it longer than we do
  loop::BackgroundTask handshake_;
  ByteBuffer encrypted_;  // on its way out
  ByteBuffer decrypted_;
  bool is_shaking_hands_ = false;
  bool has_heard_ = false;  // anything from the server
  ReplyReader reader_;
  loop::NextTurn next_turn_;  // waits while there are replies left for it
  ByteBuffer outbox_;
  std::deque<Expected> expected_;
  limiter::Micros slow_after_ = limiter::Micros::max();
  RoundTrips round_trips_;
  bool is_closed_ = false;
};

}  // namespace allowd::store
