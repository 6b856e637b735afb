// SPDX-License-Identifier: MIT
//
// The store that all hosts share: one Redis server, asked in batches.
//
// Questions gather during a loop turn and leave at its end as few scripts of many keys, in one write. While
// `max_growing_calls` scripts are unanswered the next one keeps growing instead, until it is full: that costs
// Redis least just when there is most to ask, and needs no timer.
//
// Failure    A question whose call was lost is never asked again: it may have charged. Only a server that has
// lost
//            the script is asked once more, since then nothing was charged.
//            A grant that comes after its asker was refused is given back, once.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "agent/store/redis/bucket_script.h"
#include "agent/store/redis/link.h"
#include "agent/store/store.h"

namespace allowd::store {

class RedisStore final : public Store {
 public:
  struct Options {
    Link::Options link;
    std::string prefix = "allowd";
    std::size_t max_questions = 65'536;  // unanswered; beyond, a question fails at once
    // A script leaves while fewer than this are unanswered; a full one need not wait for so few.
    std::size_t max_growing_calls = 2;
    std::size_t max_full_calls = 16;
  };

  RedisStore(loop::Loop& loop, Options options);

  // Begins to connect.
  void start() { link_.start(); }

  void attach(AnswerSink& sink) override { sink_ = &sink; }
  [[nodiscard]] Answer ask(const Question& question, SteadyTime now) override;
  [[nodiscard]] std::string_view name() const override { return "redis"; }
  [[nodiscard]] bool is_local() const override { return false; }
  [[nodiscard]] bool is_available() const override { return link_.is_up(); }
  [[nodiscard]] limiter::Micros next_probe_in(SteadyTime now) const override;
  void collect(std::vector<stats::Metric>& metrics) const override;

  // Sends what has gathered. The loop calls it at the end of each turn.
  void flush();

 private:
  using Call = std::shared_ptr<BucketCall>;
  struct GiveBack {
    std::string redis_key;
    limiter::TokenBucket bucket;
    std::int64_t cost;
  };

  [[nodiscard]] BucketCall& open_call();
  [[nodiscard]] bool may_send(const BucketCall& call);
  void send(Call call);
  void on_reply(const Call& call, const Reply& reply);
  void settle(BucketCall& call, const redisReply& reply);
  void repeat(const BucketCall& call);
  // The call was sent, and what it has charged is not known.
  void fail(const BucketCall& call);
  // The call was never sent.
  void drop_unsent(const BucketCall& call);
  void owe(const BucketCall& call, const BucketCall::Item& item);
  void answer_failed(const BucketCall::Item& item);
  void count_error(std::string_view text);
  [[nodiscard]] bool is_wanted(const BucketCall& call) const;

  loop::Loop& loop_;
  std::string prefix_;
  std::size_t max_questions_;
  std::size_t max_growing_calls_;
  std::size_t max_full_calls_;
  Link link_;
  AnswerSink* sink_ = nullptr;
  std::deque<Call> waiting_;  // not sent yet; the last one may still take questions
  std::size_t questions_open_ = 0;
  std::deque<GiveBack> owed_;  // to be sent once the link is up
  std::string key_;            // scratch

  std::map<std::string, std::uint64_t, std::less<>> errors_;  // by the first word of the reply
  std::string reported_error_;
  std::uint64_t questions_total_ = 0;
  std::uint64_t calls_total_ = 0;
  std::uint64_t refused_unasked_total_ = 0;
  std::uint64_t lost_total_ = 0;
  std::uint64_t unknown_format_total_ = 0;
  std::uint64_t given_back_total_ = 0;
  std::uint64_t healed_total_ = 0;
  std::uint64_t script_reloads_total_ = 0;
};

}  // namespace allowd::store
