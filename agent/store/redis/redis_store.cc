// SPDX-License-Identifier: MIT
#include "agent/store/redis/redis_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace allowd::store {
namespace {

using limiter::Operation;

// Tickets of askers are never this: questions of our own (giving back) carry it.
constexpr std::uint64_t kNobody = ~std::uint64_t{0};

std::string_view first_word(std::string_view text) { return text.substr(0, text.find(' ')); }

// A server that answers so is the wrong one to ask: another must be found.
bool is_wrong_server(std::string_view code) { return code == "READONLY" || code == "MASTERDOWN"; }

}  // namespace

RedisStore::RedisStore(loop::Loop& loop, Options options)
    : loop_(loop),
      prefix_(std::move(options.prefix)),
      max_questions_(options.max_questions),
      max_growing_calls_(options.max_growing_calls),
      max_full_calls_(options.max_full_calls),
      link_(loop, [&] {
        options.link.script = bucket_script();
        return std::move(options.link);
      }()) {
  link_.set_reminder([this, reported = std::uint64_t{0}]() mutable {
    const std::uint64_t since = refused_unasked_total_ - std::exchange(reported, refused_unasked_total_);
    return std::to_string(since) + " questions answered by on_failure since the last such line";
  });
  loop.at_turn_end([this] { flush(); });
}

Answer RedisStore::ask(const Question& question, SteadyTime) {
  if (!link_.is_up() || questions_open_ >= max_questions_) {
    ++refused_unasked_total_;
    return {};
  }
  key_.clear();
  append_redis_key(key_, prefix_, question.limit_tag, question.key);
  open_call().add(question.operation, *question.bucket, key_, question.cost, question.ticket);
  ++questions_open_;
  ++questions_total_;
  return {Answer::Status::promised, false, {}};
}

BucketCall& RedisStore::open_call() {
  if (waiting_.empty() || waiting_.back()->is_full()) waiting_.push_back(std::make_shared<BucketCall>());
  return *waiting_.back();
}

bool RedisStore::is_wanted(const BucketCall& call) const {
  return std::any_of(call.items().begin(), call.items().end(), [this](const BucketCall::Item& item) {
    return item.ticket == kNobody || sink_->is_waiting(item.ticket);
  });
}

void RedisStore::flush() {
  if (!link_.is_up()) {
    for (const Call& call : std::exchange(waiting_, {})) drop_unsent(*call);
    return;
  }
  for (const GiveBack& debt : std::exchange(owed_, {})) {
    open_call().add(Operation::refund, debt.bucket, debt.redis_key, debt.cost, kNobody);
    ++questions_open_;
    ++given_back_total_;
  }
  while (!waiting_.empty() && may_send(*waiting_.front())) {
    Call call = std::move(waiting_.front());
    waiting_.pop_front();
    // Everybody may have been answered while it waited; asking now would charge for nothing.
    is_wanted(*call) ? send(std::move(call)) : drop_unsent(*call);
  }
  link_.connection().flush();
}

bool RedisStore::may_send(const BucketCall& call) {
  // What is full gains nothing by waiting.
  return link_.connection().open_commands() < (call.is_full() ? max_full_calls_ : max_growing_calls_);
}

void RedisStore::send(Call call) {
  Connection& connection = link_.connection();
  call->write(connection.outbox(), link_.script_sha(), link_.clock().at(loop_.now()));
  ++calls_total_;
  connection.expect([this, call = std::move(call)](const Reply& reply) { on_reply(call, reply); });
  link_.watch_for_stall();
}

void RedisStore::on_reply(const Call& call, const Reply& reply) {
  if (reply == nullptr) {
    lost_total_ += call->items().size();
    return fail(*call);
  }
  if (!is_error(reply)) {
    if (BucketCall::fits(*reply, call->items().size())) return settle(*call, *reply);
    fail(*call);
    return link_.drop({Error::Code::system, "the script's answer is malformed"});
  }
  const std::string_view code = first_word(text_of(reply));
  if (code == "NOSCRIPT") return repeat(*call);
  count_error(text_of(reply));
  fail(*call);
  if (is_wrong_server(code)) link_.drop({Error::Code::retry_later, std::string(text_of(reply))});
}

void RedisStore::settle(BucketCall& call, const redisReply& reply) {
  healed_total_ += BucketCall::healed(reply);
  if (!reported_error_.empty()) spdlog::info("redis: scripts succeed again");
  reported_error_.clear();
  for (std::size_t i = 0; i < call.items().size(); ++i) {
    const BucketCall::Item& item = call.items()[i];
    const Answer answer = call.answer(reply, i);
    --questions_open_;
    if (answer.status == Answer::Status::failed) ++unknown_format_total_;
    if (item.ticket == kNobody) continue;
    const auto fate = sink_->on_answer(item.ticket, answer, loop_.now());
    const bool has_charged = answer.status == Answer::Status::decided && item.operation == Operation::take &&
                             answer.decision.verdict == limiter::Verdict::ok && item.cost > 0;
    if (fate == AnswerSink::Fate::refused_meanwhile && has_charged) owe(call, item);
  }
}

void RedisStore::owe(const BucketCall& call, const BucketCall::Item& item) {
  // As many as questions may be open: more cannot come late.
  if (owed_.size() >= max_questions_) return;
  owed_.push_back({std::string(call.redis_key(item)), call.bucket(item), item.cost});
}

void RedisStore::repeat(const BucketCall& call) {
  if (!link_.is_up()) return drop_unsent(call);  // nothing was charged
  ++script_reloads_total_;
  link_.reload_script();
  for (const BucketCall::Item& item : call.items()) {
    const bool is_wanted = item.ticket == kNobody || sink_->is_waiting(item.ticket);
    if (is_wanted && !item.was_repeated) {
      open_call().add(item.operation, call.bucket(item), call.redis_key(item), item.cost, item.ticket, true);
    } else {
      answer_failed(item);
    }
  }
}

void RedisStore::answer_failed(const BucketCall::Item& item) {
  --questions_open_;
  if (item.ticket != kNobody) static_cast<void>(sink_->on_answer(item.ticket, Answer{}, loop_.now()));
}

void RedisStore::fail(const BucketCall& call) {
  for (const BucketCall::Item& item : call.items()) answer_failed(item);
}

void RedisStore::drop_unsent(const BucketCall& call) {
  for (const BucketCall::Item& item : call.items()) {
    if (item.ticket == kNobody) {
      owe(call, item);
      --given_back_total_;
    }
    answer_failed(item);
  }
}

void RedisStore::count_error(std::string_view text) {
  constexpr std::size_t kMaxCodes = 32;
  const std::string code(first_word(text).substr(0, 32));
  if (errors_.size() < kMaxCodes || errors_.contains(code)) ++errors_[code];
  if (reported_error_ == code) return;  // one line per change of state
  reported_error_ = code;
  spdlog::warn("redis: scripts fail: {}; on_failure decides meanwhile", text);
}

limiter::Micros RedisStore::next_probe_in(SteadyTime now) const {
  // While the link is up every question is a probe.
  return link_.is_up() ? limiter::Micros{1} : link_.next_attempt_in(now);
}

void RedisStore::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  link_.collect(metrics);
  const auto add = [&](std::string_view name, Kind kind, std::string_view help, std::uint64_t value) {
    metrics.push_back({"redis_" + std::string(name), kind, std::string(help), static_cast<double>(value)});
  };
  add("questions_total", Kind::counter, "Questions asked of Redis.", questions_total_);
  add("scripts_total", Kind::counter, "Scripts sent to Redis.", calls_total_);
  add("questions_open", Kind::gauge, "Questions that Redis has not answered yet.", questions_open_);
  add("questions_refused_total", Kind::counter,
      "Questions not asked because Redis was down or too many were open.", refused_unasked_total_);
  add("questions_lost_total", Kind::counter, "Questions lost with their connection.", lost_total_);
  add("given_back_total", Kind::counter, "Late grants given back after their asker was refused.",
      given_back_total_);
  add("healed_total", Kind::counter, "Values put right that were no bucket or had no TTL.", healed_total_);
  add("unknown_format_total", Kind::counter,
      "Questions about values that a newer version wrote, left untouched.", unknown_format_total_);
  add("script_reloads_total", Kind::counter, "Times that Redis had lost the script.", script_reloads_total_);
  std::uint64_t errors = 0;
  for (const auto& [code, count] : errors_) errors += count;
  add("errors_total", Kind::counter, "Scripts answered with an error.", errors);
}

}  // namespace allowd::store
