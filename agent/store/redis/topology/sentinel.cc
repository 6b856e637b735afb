// SPDX-License-Identifier: MIT
#include "agent/store/redis/topology/sentinel.h"

#include <charconv>
#include <optional>
#include <utility>

#include "agent/store/redis/link/sign_in.h"

namespace allowd::store {
namespace {

constexpr limiter::Micros kPatience = std::chrono::milliseconds(300);

// The answer is an address as two strings, or nothing if the group's name is not known there.
std::optional<std::pair<std::string, std::uint16_t>> read_address(const Reply& reply) {
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) return std::nullopt;
  const redisReply& host = *reply->element[0];
  const redisReply& port_text = *reply->element[1];
  if (host.type != REDIS_REPLY_STRING || port_text.type != REDIS_REPLY_STRING) return std::nullopt;
  std::uint16_t port = 0;
  const char* end = port_text.str + port_text.len;
  const auto read = std::from_chars(port_text.str, end, port);
  if (read.ec != std::errc() || read.ptr != end || port == 0 || host.len == 0) return std::nullopt;
  return std::pair(std::string(host.str, host.len), port);
}

}  // namespace

SentinelSource::SentinelSource(loop::Loop& loop, SentinelGroup group, RedisEndpoint server,
                               std::shared_ptr<TlsMaterial> tls)
    : loop_(loop),
      group_(std::move(group)),
      server_(std::move(server)),
      tls_(std::move(tls)),
      addresses_(loop),
      password_file_(loop),
      step_(loop) {}

SentinelSource::~SentinelSource() = default;

void SentinelSource::find(Done done) {
  if (done_) forget();
  done_ = std::move(done);
  asked_ = 0;
  ask_next();
}

void SentinelSource::forget() {
  step_.stop();
  ++generation_;
  password_file_.forget();
  // Whoever asked has lost patience: not with the same one first again.
  if (std::exchange(done_, nullptr)) next_ = (next_ + 1) % group_.sentinels.size();
  is_signed_in_ = false;
  if (connection_) connection_->close({Error::Code::retry_later, "not wanted any more"});
}

void SentinelSource::ask_next() {
  if (asked_ == group_.sentinels.size())
    return finish(std::move(why_not_).within("no sentinel knows a master"));
  ++asked_;
  const std::uint64_t generation = ++generation_;
  RedisEndpoint sentinel = group_.sentinels[next_];
  if (is_signed_in_) {
    allow(kPatience);
    return ask_for_master();
  }
  allow(Connection::kForFiles);
  if (sentinel.password_file.empty()) return open(sentinel);
  password_file_.read(sentinel.password_file,
                      [this, generation, sentinel](Result<std::string> password) mutable {
                        if (generation != generation_) return;
                        if (!password) return move_on(password.error());
                        sentinel.password = std::move(*password);
                        open(sentinel);
                      });
}

void SentinelSource::open(const RedisEndpoint& sentinel) {
  connection_ = std::make_unique<Connection>(loop_, sentinel, [this](const Error& why) {
    is_signed_in_ = false;
    if (done_) move_on(why);
  });
  connection_->set_tls(tls_);
  connection_->prepare([this, sentinel] {
    allow(kPatience + Connection::for_handshake(sentinel));
    connection_->open(addresses_, [this, sentinel] {
      sign_in(*connection_, sentinel.user, sentinel.password, [this](const std::optional<Refusal>& refusal) {
        if (refusal) return move_on(refusal->why);
        is_signed_in_ = true;
        ask_for_master();
      });
    });
  });
}

void SentinelSource::allow(limiter::Micros patience) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  step_.once(patience, [this, ms] {
    move_on({Error::Code::retry_later, "no answer within " + std::to_string(ms) + " ms"});
  });
}

void SentinelSource::ask_for_master() {
  write_command(connection_->outbox(), {"SENTINEL", "get-master-addr-by-name", group_.master});
  connection_->expect([this, generation = generation_](const Reply& reply) {
    if (reply != nullptr && generation == generation_) on_master(reply);
  });
  connection_->flush();
}

void SentinelSource::on_master(const Reply& reply) {
  if (is_error(reply)) return move_on({Error::Code::retry_later, std::string(text_of(reply))});
  const auto address = read_address(reply);
  if (!address) return move_on({Error::Code::retry_later, "it does not know \"" + group_.master + "\""});
  RedisEndpoint found = server_;
  found.host = address->first;
  found.port = address->second;
  finish(std::move(found));
}

void SentinelSource::move_on(const Error& why) {
  ++generation_;
  password_file_.forget();
  is_signed_in_ = false;
  why_not_ = Error(why).within(group_.sentinels[next_].display());
  next_ = (next_ + 1) % group_.sentinels.size();
  // Never from inside a callback of the connection: asking the next one destroys it.
  step_.once(limiter::Micros{0}, [this] { ask_next(); });
}

void SentinelSource::finish(Result<RedisEndpoint> found) {
  step_.stop();
  ++generation_;
  if (const Done done = std::exchange(done_, nullptr)) done(std::move(found));
}

}  // namespace allowd::store
