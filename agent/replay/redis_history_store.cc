// SPDX-License-Identifier: MIT
#include "agent/replay/redis_history_store.h"

#include <sys/time.h>

namespace allowd::replay {
namespace {

Error failed(std::string_view what) { return Error{Error::Code::system, std::string(what)}.within("redis"); }

}  // namespace

Result<std::unique_ptr<RedisHistoryStore>> RedisHistoryStore::connect(const store::RedisEndpoint& endpoint,
                                                                      std::string prefix) {
  constexpr timeval kTimeout{5, 0};
  redisContext* context = endpoint.unix_path.empty()
                              ? redisConnectWithTimeout(endpoint.host.c_str(), endpoint.port, kTimeout)
                              : redisConnectUnixWithTimeout(endpoint.unix_path.c_str(), kTimeout);
  if (context == nullptr) return failed("out of memory");
  std::unique_ptr<RedisHistoryStore> store(new RedisHistoryStore(context, std::move(prefix)));
  if (context->err != 0) return failed(context->errstr);
  redisSetTimeout(context, kTimeout);
  if (!endpoint.password.empty()) {
    auto signed_in = endpoint.user.empty() ? store->call({"AUTH", endpoint.password})
                                           : store->call({"AUTH", endpoint.user, endpoint.password});
    if (!signed_in) return std::move(signed_in.error());
  }
  auto selected = store->call({"SELECT", std::to_string(endpoint.db)});
  if (!selected) return std::move(selected.error());
  auto loaded = store->call({"SCRIPT", "LOAD", store::bucket_script()});
  if (!loaded) return std::move(loaded.error());
  store->script_sha_ = store::text_of(*loaded);
  return store;
}

RedisHistoryStore::~RedisHistoryStore() {
  for (const std::string& key : keys_) {
    if (!call({"DEL", key})) return;  // a server that has gone; the keys' TTLs do the rest
  }
}

Result<store::Reply> RedisHistoryStore::call(std::initializer_list<std::string_view> command) {
  store::ByteBuffer bytes;
  store::write_command(bytes, command);
  return call(bytes);
}

Result<store::Reply> RedisHistoryStore::call(const store::ByteBuffer& command) {
  void* raw = nullptr;
  redisAppendFormattedCommand(context_.get(), command.data(), command.size());
  if (redisGetReply(context_.get(), &raw) != REDIS_OK) return failed(context_->errstr);
  store::Reply reply(static_cast<redisReply*>(raw));
  if (store::is_error(reply)) return failed(store::text_of(reply));
  return reply;
}

Result<limiter::Decision> RedisHistoryStore::decide(const store::Question& question, limiter::TimePoint now) {
  const bool asks_to_pass =
      question.operation == limiter::Operation::take || question.operation == limiter::Operation::peek;
  const bool is_never = asks_to_pass && !question.bucket->can_hold(question.cost);
  std::string key;
  store::append_redis_key(key, prefix_, question.limit_tag, question.key);
  // The daemon asks Redis nothing about what can never pass; here its true level is wanted.
  store::BucketCall bucket_call;
  if (is_never) {
    bucket_call.add(limiter::Operation::peek, *question.bucket, key, 0, 0);
  } else {
    bucket_call.add(question.operation, *question.bucket, key, question.cost, 0);
  }
  keys_.insert(std::move(key));
  store::ByteBuffer command;
  bucket_call.write(command, script_sha_, now);
  auto reply = call(command);
  if (!reply) return std::move(reply.error());
  if (!store::BucketCall::fits(**reply, 1)) return failed("the script's answer is malformed");
  const store::Answer answer = bucket_call.answer(**reply, 0);
  if (answer.status != store::Answer::Status::decided)
    return failed("the key holds a value of a newer version");
  if (!is_never) return answer.decision;
  auto decision = answer.decision;
  decision.verdict = limiter::Verdict::never;
  decision.retry_after = limiter::kNever;
  return decision;
}

}  // namespace allowd::replay
