// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/query.h"

#include <optional>
#include <utility>

#include "agent/store/redis/link/sign_in.h"

namespace allowd::store {

Query::Query(loop::Loop& loop, const RedisEndpoint& endpoint, std::shared_ptr<TlsMaterial> tls,
             std::initializer_list<std::string_view> command, const ReplyReader::Caps& caps)
    : endpoint_(endpoint),
      command_(command.begin(), command.end()),
      patience_(loop),
      addresses_(loop),
      password_file_(loop),
      connection_(
          loop, endpoint, [this](Error why) { finish(std::move(why)); }, caps) {
  connection_.set_tls(std::move(tls));
}

void Query::start(limiter::Micros patience, Done done) {
  done_ = std::move(done);
  for_server_ = patience + Connection::for_handshake(endpoint_);
  patience_.once(Connection::kForFiles, [this] {
    finish(Error{Error::Code::retry_later, "its files cannot be read in time"});
  });
  if (endpoint_.password_file.empty()) return open();
  password_file_.read(endpoint_.password_file, [this](Result<std::string> password) {
    if (!password) return finish(std::move(password.error()));
    endpoint_.password = std::move(*password);
    open();
  });
}

void Query::open() {
  connection_.prepare([this] {
    patience_.once(for_server_, [this] { finish(Error{Error::Code::retry_later, "no answer in time"}); });
    connection_.open(addresses_, [this] {
      sign_in(connection_, endpoint_.user, endpoint_.password,
              [this](std::optional<Refusal> refusal) { refusal ? finish(std::move(refusal->why)) : send(); });
    });
  });
}

void Query::send() {
  ByteBuffer& out = connection_.outbox();
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
