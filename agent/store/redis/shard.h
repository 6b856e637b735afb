// SPDX-License-Identifier: MIT
//
// One Redis server that keeps limits, all of them or its share, asked in batches.
//
// Questions gather during a loop turn and leave at its end as few scripts of many keys, in one write. While
// `max_growing_calls` scripts are unanswered the next one keeps growing instead, until it is full: that costs
// Redis least just when there is most to ask, and needs no timer. Of a server that keeps several groups of
// keys, which cannot go in one script together, what counts is the waves in which scripts of all groups
// leave.
//
// Cluster    What the server redirects is handed to the router. A server that has only just become known, or
//            to which questions were redirected, is waited for while it connects, as long as their askers
//            wait.
//
// Failure    A question whose call was lost is never asked again: it may have charged. Only a server that has
//            lost the script is asked once more, since then nothing was charged.
//            A server that keeps failing is not asked but for probes, one at a time (breaker.h).
//            A grant that comes after its asker was refused is given back, once, to the server that granted
//            it or to whom that has handed the key on (shard_debts.cc).
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "agent/store/redis/batch.h"
#include "agent/store/redis/breaker.h"
#include "agent/store/redis/codec/script_call.h"
#include "agent/store/redis/codec/server_error.h"
#include "agent/store/redis/link/heartbeat.h"
#include "agent/store/redis/link/link.h"
#include "agent/store/redis/server_troubles.h"
#include "agent/store/shared_store.h"

namespace allowd::store {

class Shard {
 public:
  struct Options {
    Link::Options link;  // without the script
    Heartbeat::Options heartbeat;
    std::size_t max_questions = 65'536;  // unanswered; beyond, a question fails at once
    // Keys of different groups never go in one script; a question's group is its `shard`. Above 1 with a
    // router.
    std::size_t groups = 1;
    BatchRouter* router = nullptr;  // null: nothing ever moves to another server
    // A script leaves while fewer than this are unanswered; a full one need not wait for so few.
    std::size_t max_growing_calls = 2;
    std::size_t max_full_calls = 16;
  };
  // How a batch is asked that another server has redirected.
  enum class Passage : std::uint8_t {
    as_it_is,  // its questions join others of their group
    asking,  // each by itself: the server does not keep their keys yet, and takes no more than one at a time
    one_by_one,  // each by itself: their keys are on two servers
  };

  Shard(loop::Loop& loop, Options options);

  // Begins to connect.
  void start();
  void attach(SharedSink& sink) { sink_ = &sink; }

  // As SharedStore has them, of keys as they are in Redis.
  [[nodiscard]] std::optional<ShardTime> time(SteadyTime now) const;
  [[nodiscard]] bool ask(const SharedQuestion& question, std::string_view redis_key);
  [[nodiscard]] bool ask_together(std::span<const SharedQuestion> questions,
                                  std::span<const std::string> redis_keys);
  // `done` gets the server's answer; null: nobody knows.
  void reset(std::string_view redis_key, bool is_asking, std::function<void(const Reply&)> done);
  // Runs the script for no question at all: reads the key, so that a server which does not keep it says who
  // does. Expects is_up(). `done` gets the answer; null: there is none.
  void ask_about_nothing(std::string_view redis_key, std::function<void(const Reply&)> done);

  // Asks what another shard was asked and did not charge. Answers as failed what nobody waits for, what has
  // been redirected five times, and what there is no room for.
  void take_over(const Batch& batch, Passage passage);
  // Answers it all as failed: nobody can be asked.
  void refuse(const Batch& batch);
  // What was to be given back will not be: another server is connected to, or none is any more.
  void forget_debts();
  void set_max_questions(std::size_t questions) { max_questions_ = questions; }
  [[nodiscard]] bool is_up() const { return link_.is_up(); }
  // Whether it is not up yet, and questions are kept for it meanwhile.
  [[nodiscard]] bool is_waited_for() const { return !link_.is_up() && loop_.now() < wait_until_; }
  // Whether nothing that it was asked is unanswered.
  [[nodiscard]] bool is_idle() const { return questions_open_ == 0 && resets_.empty(); }

  // False while it is known not to answer: from when that began until somebody may ask again.
  [[nodiscard]] bool is_answering() const;
  [[nodiscard]] limiter::Micros next_probe_in(SteadyTime now) const;
  void note_expired(limiter::Micros waited, SteadyTime now);
  [[nodiscard]] std::optional<std::uint32_t> agents() const { return heartbeat_.agents(); }
  // This agent is about to stop.
  void leave() { heartbeat_.leave(); }
  // The names of describe()'s columns: a line, as that is. While the server is down or its breaker not
  // closed, the last two say what went wrong last, quoted, and how long ago; else "-".
  [[nodiscard]] static std::string_view heading();
  [[nodiscard]] std::string describe() const;
  // The line of servers that nobody has named yet: the addresses that were asked for them, with commas
  // between them, and what kept those from it (empty: nothing so far), so long ago.
  [[nodiscard]] static std::string describe_unnamed(std::string_view urls, limiter::Micros reason_age,
                                                    std::string_view reason);
  // Always the same metrics in the same order.
  void collect(std::vector<stats::Metric>& metrics) const;

  // Sends what has gathered. To be called at the end of each turn of the loop.
  void flush();

 private:
  static constexpr std::size_t kShapes = ServerTroubles::kShapes;
  static constexpr std::uint64_t kNobody = Batch::kNobody;
  static constexpr std::string_view kNoAnswer = "no answer in time";
  [[nodiscard]] bool takes_questions() const { return link_.is_up() || is_waited_for(); }
  using OpenCalls = std::array<ScriptCall*, kShapes>;
  // Until the server's answer has come, whether or not somebody still waits for it.
  struct Reset {
    loop::Timer patience;
    std::function<void(const Reply&)> done;  // null: was told that nobody knows
  };

  [[nodiscard]] std::uint32_t group_of(const SharedQuestion& question) const {
    return open_.size() == 1 ? 0 : question.shard;
  }
  // The call that gathers questions of that group and shape.
  [[nodiscard]] ScriptCall& open_call(std::uint32_t group, limiter::Definition::Shape shape);
  // No more questions join the batch.
  void close(const Batch& batch);
  // Scripts, or waves of them, that are unanswered.
  [[nodiscard]] std::size_t in_flight();
  [[nodiscard]] bool may_send(const Batch& batch);
  void send_waiting();
  void send(Batch batch);
  // Ahead of a script about keys that the server does not keep yet.
  void send_asking();
  void end_of_wave(const Batch& batch);
  void on_reply(const Batch& batch, const Reply& reply);
  void on_transaction(const Batch& batch, const Reply& reply);
  // True when the reply was an error, which then has been seen to.
  [[nodiscard]] bool has_failed(const Batch& batch, const Reply& reply);
  void settle(const Batch& batch, const std::vector<SharedAnswer>& answers);
  // Asks once more what has charged nothing: all of the batch, or one question.
  void repeat(const Batch& batch);
  void repeat(const Batch& batch, const ScriptCall::Item& item);
  // Puts a question of another batch among those that wait, alone or with others.
  void add_again(const Batch& from, const ScriptCall::Item& item, bool is_alone, bool is_asking);
  // The same for what is decided together; false: somebody has left it.
  [[nodiscard]] bool add_together_again(const Batch& from, bool is_asking, bool is_redirected);
  // The call was sent; unless nothing has been done for certain, what it has charged is not known.
  void fail(const ScriptCall& call, bool is_unasked = false);
  // The batch was never sent.
  void drop_unsent(const Batch& batch);
  // Fails what waits for the link: all, unless it is waited for; then what nobody waits for any more.
  void drop_unconnected();
  // The server that the batch was sent to has granted so much to nobody.
  void owe(const Batch& batch, const ScriptCall::Item& item, std::int64_t cost);
  void owe_unsent(const Batch& batch, const ScriptCall::Item& item, std::int64_t cost);
  // Puts it among what is asked next; false: it cannot be asked now.
  [[nodiscard]] bool give_back(const GiveBack& debt);
  void pay_debts();
  void note_debts_sent(const ScriptCall& call);
  // What the batch gives back, and the rest.
  [[nodiscard]] static std::pair<Batch, Batch> split_debts(const Batch& batch);
  void drop_debts(std::size_t count) { give_backs_dropped_total_ += count; }
  void redirect(const Batch& batch, ServerError error, std::string_view text);
  void answer_failed(const ScriptCall::Item& item, bool is_unasked);
  void count_error(const ScriptCall& call, std::string_view text, std::string_view code);
  // True when the error means that this server, which is to be asked alone, is one of a Cluster.
  [[nodiscard]] bool reveals_cluster(const ErrorReply& error);
  [[nodiscard]] bool is_wanted(const ScriptCall::Item& item) const;
  // What the breaker learns: that a call failed, or was answered.
  void note_failure(const ScriptCall& call, Breaker::Failure why, std::string_view text);
  void note_answer(const ScriptCall& call);
  void note_trouble(std::string_view what);
  void report_opened(std::string_view why) const;
  [[nodiscard]] bool holds_probe(const ScriptCall& call) const;
  // The question has ended; if it was a probe that nobody has judged, it was in vain.
  void end_probe(const ScriptCall::Item& item);
  // Fails what has not left and is no probe, while the breaker is not closed.
  void drop_waiting();
  [[nodiscard]] bool is_wanted(const ScriptCall& call) const;

  loop::Loop& loop_;
  std::size_t max_questions_;
  std::size_t max_growing_calls_;
  std::size_t max_full_calls_;
  BatchRouter* router_;
  ServerTroubles troubles_;
  Breaker breaker_;
  Link link_;
  Heartbeat heartbeat_;
  SharedSink* sink_ = nullptr;
  std::deque<Batch> waiting_;              // not sent yet
  std::map<std::uint64_t, Reset> resets_;  // by number
  std::uint64_t last_reset_ = 0;
  std::vector<OpenCalls> open_;    // of those, by group, the one that still takes questions of that shape
  std::deque<std::size_t> waves_;  // of each, how many scripts are unanswered; with several groups only
  std::uint64_t first_wave_ = 0;   // the number of the first of these
  SteadyTime wait_until_{};        // until then the link is waited for
  std::size_t questions_open_ = 0;
  // To be sent once the link is up. All of this, and of what waits, is due to the link's last server.
  std::deque<GiveBack> owed_;
  std::optional<std::uint64_t> probe_;  // the ticket of the question that is one
  SteadyTime lost_at_{};                // when questions were lost last
  std::string last_trouble_;            // what the breaker has heard of last
  SteadyTime troubled_at_{};

  std::map<std::string, std::uint64_t, std::less<>> errors_;  // by the first word of the reply
  std::array<std::string, kShapes> reported_errors_;  // by shape: one kind may fail beside others that do not
  bool has_revealed_cluster_ = false;
  bool lacks_asking_ = false;
  std::uint64_t questions_total_ = 0;
  std::uint64_t calls_total_ = 0;
  std::uint64_t refused_unasked_total_ = 0;
  std::uint64_t lost_total_ = 0;
  std::uint64_t unknown_format_total_ = 0;
  std::uint64_t given_back_total_ = 0;
  std::uint64_t give_backs_dropped_total_ = 0;
  std::uint64_t healed_total_ = 0;
  std::uint64_t script_reloads_total_ = 0;
};

}  // namespace allowd::store
