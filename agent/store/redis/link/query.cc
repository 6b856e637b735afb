// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/query.h"

#include <utility>

namespace allowd::store {

Query::Query(loop::Loop& loop, const RedisEndpoint& endpoint, std::shared_ptr<TlsMaterial> tls,
             std::initializer_list<std::string_view> command, const ReplyReader::Caps& caps)
    : endpoint_(endpoint),
      command_(command.begin(), command.end()),
      patience_(loop),
      connection_(
          loop, endpoint, [this](Error why) { finish(std::move(why)); }, caps) {
  connection_.set_tls(std::move(tls));
}

void Query::start(limiter::Micros patience, Done done) {
  done_ = std::move(done);
  patience_.once(patience, [this] { finish(Error{Error::Code::retry_later, "no answer in time"}); });
  connection_.open([this] { send(); });
}

void Query::send() {
  ByteBuffer& out = connection_.outbox();
  const auto accept = [this](const Reply& reply) {
    if (reply == nullptr || !is_error(reply)) return;
    finish(Error{Error::Code::retry_later, std::string(text_of(reply))}.within("sign in"));
  };
  if (!endpoint_.user.empty()) {
    write_command(out, {"AUTH", endpoint_.user, endpoint_.password});
    connection_.expect(accept);
  } else if (!endpoint_.password.empty()) {
    write_command(out, {"AUTH", endpoint_.password});
    connection_.expect(accept);
  }
  write_command_header(out, command_.size());
  for (const std::string& word : command_) write_bulk(out, word);
  connection_.expect([this](Reply reply) {
    if (reply == nullptr) return;  // the connection has ended, and says so itself
    if (is_error(reply)) return finish(Error{Error::Code::retry_later, std::string(text_of(reply))});
    finish(std::move(reply));
  });
  connection_.flush();
}

void Query::finish(Result<Reply> result) {
  patience_.stop();
  const Done done = std::exchange(done_, nullptr);
  if (!done) return;
  connection_.close({Error::Code::retry_later, "it has been answered"});
  done(std::move(result));
}

}  // namespace allowd::store
