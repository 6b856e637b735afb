// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/sign_in.h"

#include <utility>

#include "agent/store/redis/codec/server_error.h"

namespace allowd::store {
namespace {

constexpr std::string_view kClientName = "allowd";
constexpr std::string_view kDefaultUser = "default";

using Done = std::function<void(std::optional<Refusal>)>;

void name_connection(Connection& connection) {
  write_command(connection.outbox(), {"CLIENT", "SETNAME", kClientName});
  connection.expect([](const Reply&) {});  // a courtesy to whoever lists clients; an ACL may forbid it
}

// As servers before HELLO want it: without a name for the default user.
void sign_in_by_auth(Connection& connection, const std::string& user, const std::string& password,
                     Done done) {
  if (password.empty()) {
    name_connection(connection);
    connection.flush();
    return done(std::nullopt);
  }
  const bool is_default = user.empty() || user == kDefaultUser;
  is_default ? write_command(connection.outbox(), {"AUTH", password})
             : write_command(connection.outbox(), {"AUTH", user, password});
  connection.expect([&connection, done = std::move(done)](const Reply& reply) {
    if (reply == nullptr) return;
    if (is_error(reply)) {
      Refusal refusal = refusal_of(reply, "sign in");
      // "ERR invalid password", "ERR wrong number of arguments" (no users): of Redis before 6, not to be
      // waited out.
      refusal.is_lasting = read_error(text_of(reply)).kind != ServerError::busy;
      return done(std::move(refusal));
    }
    name_connection(connection);
    done(std::nullopt);
  });
  connection.flush();
}

}  // namespace

Refusal refusal_of(const Reply& error, std::string_view doing) {
  const std::string text(text_of(error));
  return {Error{Error::Code::retry_later, text}.within(doing),
          read_error(text).kind == ServerError::not_permitted};
}

void sign_in(Connection& connection, const std::string& user, const std::string& password, Done done) {
  ByteBuffer& out = connection.outbox();
  if (password.empty()) {
    write_command(out, {"HELLO", "2", "SETNAME", kClientName});
  } else {
    write_command(out, {"HELLO", "2", "AUTH", user.empty() ? kDefaultUser : std::string_view(user), password,
                        "SETNAME", kClientName});
  }
  connection.expect([&connection, user, password, done = std::move(done)](const Reply& reply) {
    if (reply == nullptr) return;
    if (!is_error(reply)) return done(std::nullopt);
    const ErrorReply error = read_error(text_of(reply));
    // So Valkey 9 answers whatever it does not know, too, before one has signed in.
    const bool is_unknown = !password.empty() && error.code == "NOAUTH";
    if (error.kind != ServerError::other && !is_unknown) return done(refusal_of(reply, "sign in"));
    sign_in_by_auth(connection, user, password, done);
  });
  connection.flush();
}

}  // namespace allowd::store
