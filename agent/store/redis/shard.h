// SPDX-License-Identifier: MIT
//
// One Redis server that keeps limits, all of them or its share, asked in batches.
//
// Questions gather during a loop turn and leave at its end as few scripts of many keys, in one write. While
// `max_growing_calls` scripts are unanswered the next one keeps growing instead, until it is full: that costs
// Redis least just when there is most to ask, and needs no timer.
//
// Failure    A question whose call was lost is never asked again: it may have charged. Only a server that has
//            lost the script is asked once more, since then nothing was charged.
//            A grant that comes after its asker was refused is given back, once.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "agent/store/redis/codec/script_call.h"
#include "agent/store/redis/link/link.h"
#include "agent/store/redis/server_troubles.h"
#include "agent/store/shared_store.h"

namespace allowd::store {

class Shard {
 public:
  struct Options {
    Link::Options link;                  // without the script
    std::size_t max_questions = 65'536;  // unanswered; beyond, a question fails at once
    // A script leaves while fewer than this are unanswered; a full one need not wait for so few.
    std::size_t max_growing_calls = 2;
    std::size_t max_full_calls = 16;
  };

  Shard(loop::Loop& loop, Options options);

  // Begins to connect.
  void start() { link_.start(); }
  void attach(SharedSink& sink) { sink_ = &sink; }

  // As SharedStore has them, of keys as they are in Redis.
  [[nodiscard]] std::optional<ShardTime> time(SteadyTime now) const;
  [[nodiscard]] bool ask(const SharedQuestion& question, std::string_view redis_key);
  [[nodiscard]] bool ask_together(std::span<const SharedQuestion> questions,
                                  std::span<const std::string> redis_keys);
  void reset(std::string_view redis_key, std::function<void(bool)> done);

  [[nodiscard]] bool is_up() const { return link_.is_up(); }
  [[nodiscard]] limiter::Micros next_probe_in(SteadyTime now) const;
  // The names of describe()'s columns: a line, as that is.
  [[nodiscard]] static std::string_view heading();
  [[nodiscard]] std::string describe() const;
  // Always the same metrics in the same order.
  void collect(std::vector<stats::Metric>& metrics) const;

  // Sends what has gathered. To be called at the end of each turn of the loop.
  void flush();

 private:
  using Call = std::shared_ptr<ScriptCall>;
  struct GiveBack {
    std::string redis_key;
    limiter::DefinitionPtr definition;
    std::int64_t cost;
  };
  static constexpr std::size_t kShapes = 4;
  // Until the server's answer has come, whether or not somebody still waits for it.
  struct Reset {
    loop::Timer patience;
    std::function<void(bool)> done;  // null: was told that nobody knows
  };

  // The call that gathers questions of that shape.
  [[nodiscard]] ScriptCall& open_call(limiter::Definition::Shape shape);
  [[nodiscard]] bool may_send(const ScriptCall& call);
  void send(Call call);
  void on_reply(const Call& call, const Reply& reply);
  void on_transaction(const Call& call, const Reply& reply);
  // True when the reply was an error, which then has been seen to.
  [[nodiscard]] bool has_failed(const Call& call, const Reply& reply);
  void settle(const ScriptCall& call, const std::vector<SharedAnswer>& answers);
  // Asks once more what has charged nothing: all of the call, or one question.
  void repeat(const ScriptCall& call);
  void repeat(const ScriptCall& call, const ScriptCall::Item& item);
  // The call was sent, and what it has charged is not known.
  void fail(const ScriptCall& call);
  // The call was never sent.
  void drop_unsent(const ScriptCall& call);
  void owe(const ScriptCall& call, const ScriptCall::Item& item, std::int64_t cost);
  void answer_failed(const ScriptCall::Item& item);
  void count_error(const ScriptCall& call, std::string_view text, std::string_view code);
  [[nodiscard]] bool is_wanted(const ScriptCall& call) const;

  loop::Loop& loop_;
  std::size_t max_questions_;
  std::size_t max_growing_calls_;
  std::size_t max_full_calls_;
  ServerTroubles troubles_;
  Link link_;
  SharedSink* sink_ = nullptr;
  std::deque<Call> waiting_;               // not sent yet
  std::map<std::uint64_t, Reset> resets_;  // by number
  std::uint64_t last_reset_ = 0;
  std::array<ScriptCall*, kShapes> open_{};  // of those, the one that still takes questions of that shape
  std::size_t questions_open_ = 0;
  std::deque<GiveBack> owed_;  // to be sent once the link is up

  std::map<std::string, std::uint64_t, std::less<>> errors_;  // by the first word of the reply
  std::array<std::string, kShapes> reported_errors_;  // by shape: one kind may fail beside others that do not
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
