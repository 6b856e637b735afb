// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/attempt.h"

#include <utility>

#include "agent/store/redis/codec/script_call.h"

namespace allowd::store {
namespace {

// The first element of the answer to ROLE is "master", "slave" or "sentinel".
bool says_master(const Reply& reply) {
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0) return false;
  const redisReply* role = reply->element[0];
  return role->type == REDIS_REPLY_STRING && std::string_view(role->str, role->len) == "master";
}

}  // namespace

Attempt::Attempt(const Means& means, OnReady on_ready, OnFailed on_failed)
    : means_(means),
      on_ready_(std::move(on_ready)),
      on_failed_(std::move(on_failed)),
      patience_(means.loop) {}

Attempt::~Attempt() {
  if (is_over_) return;
  means_.source.forget();
  means_.password_file.forget();
}

void Attempt::start() {
  means_.source.find(
      [this](const Result<RedisEndpoint>& found) { found ? find_password(*found) : fail({found.error()}); });
}

void Attempt::allow(limiter::Micros patience, std::string_view otherwise) {
  patience_.once(patience, [this, otherwise] {
    const Error why{Error::Code::retry_later, std::string(otherwise)};
    // The connection knows what it was waiting for, and says so when it is told to close.
    ready_.connection ? ready_.connection->close(why) : fail({why});
  });
}

void Attempt::find_password(const RedisEndpoint& endpoint) {
  endpoint_ = endpoint;
  allow(Connection::kForFiles, "its files cannot be read within 10 s");
  if (endpoint_.password_file.empty()) return open();
  means_.password_file.read(endpoint_.password_file, [this](Result<std::string> password) {
    if (!password) return fail({std::move(password.error())});
    endpoint_.password = std::move(*password);
    open();
  });
}

void Attempt::open() {
  ready_.connection =
      std::make_unique<Connection>(means_.loop, endpoint_, [this](Error why) { fail({std::move(why)}); });
  ready_.connection->set_tls(means_.tls);
  ready_.connection->prepare([this] {
    allow(kTimeout + Connection::for_handshake(endpoint_),
          endpoint_.is_tls ? "no answer within two seconds" : "no answer within a second");
    ready_.connection->open(means_.addresses, [this] {
      sign_in(*ready_.connection, endpoint_.user, endpoint_.password,
              [this](std::optional<Refusal> refusal) { refusal ? fail(*std::move(refusal)) : prepare(); });
    });
  });
}

void Attempt::ask(std::initializer_list<std::string_view> command, std::string_view doing,
                  std::function<void(const Reply&)> on_reply) {
  write_command(ready_.connection->outbox(), command);
  ready_.connection->expect([this, doing, on_reply = std::move(on_reply)](const Reply& reply) {
    if (reply == nullptr || is_over_) return;  // the connection has ended, and says so itself
    is_error(reply) ? fail(refusal_of(reply, doing)) : on_reply(reply);
  });
}

void Attempt::prepare() {
  if (endpoint_.db != 0) {
    ask({"SELECT", std::to_string(endpoint_.db)}, "select the database", [](const Reply&) {});
  }
  if (means_.source.must_be_master()) {
    ask({"ROLE"}, "ask its role", [this](const Reply& reply) {
      if (!says_master(reply)) fail({{Error::Code::retry_later, "it is not a master"}});
    });
  }
  for (const std::string_view section : {"server", "replication"}) {
    write_command(ready_.connection->outbox(), {"INFO", section});
    ready_.connection->expect([this](const Reply& reply) { ready_.server.read(reply); });
  }
  ask({"SCRIPT", "LOAD", means_.script}, "load the script", [this](const Reply& reply) {
    ready_.script_sha = text_of(reply);
    means_.script_tells_time ? try_script_time() : measure_clock();
  });
  ready_.connection->flush();
}

void Attempt::try_script_time() {
  // Of a kind that it does not know, about no keys.
  write_command(ready_.connection->outbox(),
                {"EVALSHA", ready_.script_sha, "0", ScriptCall::kServerTime, ScriptCall::kServerTime});
  ready_.connection->expect([this](const Reply& reply) {
    if (reply == nullptr || is_over_) return;
    if (!is_error(reply)) return measure_clock();
    Refusal refusal = refusal_of(reply, "clock = \"redis\", but its scripts cannot call TIME");
    refusal.is_lasting = read_error(text_of(reply)).kind != ServerError::busy;
    fail(std::move(refusal));
  });
  ready_.connection->flush();
}

void Attempt::measure_clock() {
  ask_time(*ready_.connection, [this](ClockReadings readings) {
    if (is_over_) return;
    if (readings.all.empty()) {
      return fail({std::move(readings.why), readings.kind == ServerError::not_permitted});
    }
    is_over_ = true;
    patience_.stop();
    ready_.clock = std::move(readings.all);
    on_ready_(std::move(ready_));
  });
}

void Attempt::fail(Refusal refusal) {
  if (std::exchange(is_over_, true)) return;
  patience_.stop();
  means_.source.forget();
  means_.password_file.forget();
  // Ends the connection, which may be what calls: it is destroyed with the attempt.
  if (ready_.connection) ready_.connection->close(refusal.why);
  on_failed_(refusal);
}

}  // namespace allowd::store
