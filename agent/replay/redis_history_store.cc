// SPDX-License-Identifier: MIT
#include "agent/replay/redis_history_store.h"

#include "agent/store/redis/codec/script.h"

namespace allowd::replay {
namespace {

Error failed(std::string_view what) { return Error{Error::Code::system, std::string(what)}.within("redis"); }

}  // namespace

Result<std::unique_ptr<RedisHistoryStore>> RedisHistoryStore::connect(const store::RedisEndpoint& endpoint,
                                                                      const tls::TlsOptions& tls,
                                                                      std::string prefix) {
  auto socket = RedisSocket::connect(endpoint, tls);
  if (!socket) return failed(socket.error().message);
  std::unique_ptr<RedisHistoryStore> store(new RedisHistoryStore(std::move(*socket), std::move(prefix)));
  if (!endpoint.password.empty()) {
    // Without users, before Redis 6, there is the one.
    const bool is_default = endpoint.user.empty() || endpoint.user == "default";
    auto signed_in = is_default ? store->call({"AUTH", endpoint.password})
                                : store->call({"AUTH", endpoint.user, endpoint.password});
    if (!signed_in) return std::move(signed_in.error());
  }
  auto selected = store->call({"SELECT", std::to_string(endpoint.db)});
  if (!selected) return std::move(selected.error());
  auto loaded = store->call({"SCRIPT", "LOAD", store::decision_script()});
  if (!loaded) return std::move(loaded.error());
  store->script_sha_ = store::text_of(*loaded);
  return store;
}

RedisHistoryStore::~RedisHistoryStore() {
  // By SCAN: what was written need not be remembered, however long the history. A page may be a little larger
  // than asked for, and must be no more than the reader takes.
  std::string cursor = "0";
  const std::string pattern = prefix_ + ":*";
  do {
    auto page = call({"SCAN", cursor, "MATCH", pattern, "COUNT", "250"});
    if (!page || (*page)->type != REDIS_REPLY_ARRAY || (*page)->elements != 2) return;  // TTLs do the rest
    const redisReply& next = *(*page)->element[0];
    const redisReply& keys = *(*page)->element[1];
    cursor.assign(next.str, next.len);
    for (std::size_t i = 0; i < keys.elements; ++i) {
      if (!call({"DEL", {keys.element[i]->str, keys.element[i]->len}})) return;
    }
  } while (cursor != "0");
}

Result<store::Reply> RedisHistoryStore::call(std::initializer_list<std::string_view> command) {
  store::ByteBuffer bytes;
  store::write_command(bytes, command);
  return call(bytes);
}

Result<store::Reply> RedisHistoryStore::call(const store::ByteBuffer& command) {
  auto reply = socket_->call(command.view());
  if (!reply) return failed(reply.error().message);
  if (store::is_error(*reply)) return failed(store::text_of(*reply));
  return reply;
}

Result<limiter::Decision> RedisHistoryStore::decide(const store::Question& question, limiter::TimePoint now) {
  using limiter::Operation;
  using Shape = limiter::Definition::Shape;
  const limiter::Definition& definition = *question.definition;
  if (definition.shape() == Shape::counter) {
    return Error{Error::Code::bad_request, "a counter's clock is Redis's own: replay it with --store memory"};
  }
  const bool asks_to_pass = question.operation == Operation::take || question.operation == Operation::peek;
  // The daemon asks Redis nothing about what can never pass; here its true level is wanted.
  const bool is_never =
      asks_to_pass && definition.shape() != Shape::tiers && question.cost > definition.strictest().capacity();
  std::string key;
  store::append_redis_key(key, prefix_, question.limit_tag, question.key);
  const auto script_call = store::ScriptCall::make(definition.shape());
  script_call->add(is_never ? Operation::peek : question.operation, definition, key,
                   is_never ? 0 : question.cost, 0);
  store::ByteBuffer command;
  script_call->write(command, script_sha_, now);
  auto reply = call(command);
  if (!reply) return std::move(reply.error());
  if (!script_call->fits(**reply)) return failed("the script's answer is malformed");
  const store::Answer answer = script_call->answers(**reply).front();
  if (answer.status != store::Answer::Status::decided)
    return failed("the key holds a value of a newer version, or the script's answer contradicts itself");
  if (!is_never) return answer.decision;
  auto decision = answer.decision;
  decision.verdict = limiter::Verdict::never;
  decision.retry_after = limiter::kNever;
  definition.judge(decision);
  return decision;
}

}  // namespace allowd::replay
