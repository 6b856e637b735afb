// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/counter_call.h"

#include <algorithm>
#include <charconv>
#include <chrono>

namespace allowd::store {
namespace {

using limiter::Operation;

bool hits(const ScriptCall::Item& item) {
  return item.cost > 0 && (item.operation == Operation::take || item.operation == Operation::force);
}

std::int64_t window_ms(const limiter::Counter& counter) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(counter.rate().period).count();
}

// An INCRBY's or GET's reply as a count; a key that is not there counts 0.
std::optional<std::int64_t> count_of(const redisReply& reply) {
  std::int64_t count = 0;
  if (reply.type == REDIS_REPLY_INTEGER) {
    count = reply.integer;
  } else if (reply.type == REDIS_REPLY_STRING) {
    const auto [end, problem] = std::from_chars(reply.str, reply.str + reply.len, count);
    if (problem != std::errc() || end != reply.str + reply.len) return std::nullopt;
  } else if (reply.type != REDIS_REPLY_NIL) {
    return std::nullopt;
  }
  if (count < 0 || count > limiter::kMaxUsed) return std::nullopt;
  return count;
}

}  // namespace

void CounterCall::write_arguments(ByteBuffer& out) const {
  for (const Item& item : items()) {
    write_bulk(out, letter_of(item.operation));
    write_bulk(out, std::min(item.cost, limiter::kMaxUsed));
    write_bulk(out, window_ms(definition(item).counter()));
  }
}

SharedAnswer CounterCall::answer(const Item& item, std::int64_t count, std::int64_t left_ms) const {
  const limiter::Counter& counter = definition(item).counter();
  const limiter::Micros left =
      std::chrono::milliseconds(std::clamp<std::int64_t>(left_ms, 1, window_ms(counter)));
  SharedAnswer answer = no_answer();
  answer.status = Answer::Status::decided;
  answer.decision = counter.describe(count, left, item.operation, item.cost);
  definition(item).judge(answer.decision);
  return answer;
}

std::vector<SharedAnswer> CounterCall::answers(const redisReply& reply) const {
  std::vector<SharedAnswer> all;
  for (std::size_t i = 0; i < items().size(); ++i) {
    const std::int64_t count = reply.element[2 * i]->integer;
    const bool is_count = count >= 0 && count <= 2 * limiter::kMaxUsed;
    all.push_back(!is_count ? no_answer() : answer(items()[i], count, reply.element[2 * i + 1]->integer));
  }
  return all;
}

bool CounterCall::has_repeated() const {
  return std::any_of(items().begin(), items().end(), [](const Item& item) { return item.was_repeated; });
}

std::size_t CounterCall::write_transaction(ByteBuffer& out, limiter::TimePoint now) {
  std::size_t commands = 1;
  set_asked_at(now);
  write_command(out, {"MULTI"});
  for (const Item& item : items()) {
    const std::string_view key = redis_key(item);
    if (hits(item)) {
      write_command(out, {"INCRBY", key, std::to_string(std::min(item.cost, limiter::kMaxUsed))});
      write_command(out, {"PEXPIRE", key, std::to_string(window_ms(definition(item).counter())), "NX"});
      ++commands;
    } else {
      write_command(out, {"GET", key});
    }
    write_command(out, {"PTTL", key});
    commands += 2;
  }
  write_command(out, {"EXEC"});
  return commands;
}

std::vector<SharedAnswer> CounterCall::transaction_answers(const redisReply& reply) const {
  std::vector<SharedAnswer> all;
  std::size_t at = 0;
  if (reply.type != REDIS_REPLY_ARRAY) return {};
  for (const Item& item : items()) {
    const std::size_t replies = hits(item) ? 3 : 2;
    if (at + replies > reply.elements) return {};
    const auto count = count_of(*reply.element[at]);
    const redisReply& left = *reply.element[at + replies - 1];
    at += replies;
    // Less than was just added: something below zero stood there.
    const bool is_count = count && (!hits(item) || *count >= std::min(item.cost, limiter::kMaxUsed));
    const bool has_window = left.type == REDIS_REPLY_INTEGER && (left.integer >= 0 || !count || *count == 0);
    if (is_count && has_window) {
      all.push_back(answer(item, *count, left.integer));
    } else {
      all.push_back(no_answer());
      all.back().status = Answer::Status::promised;
    }
  }
  if (at != reply.elements) return {};
  return all;
}

}  // namespace allowd::store
