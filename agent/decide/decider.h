// SPDX-License-Identifier: MIT
//
// Answers queries: finds the limit, asks the store, and when the store does not answer in time applies the
// limit's failure policy. This is the one place that fails open or closed.
//
// Every query is answered exactly once: by `ask` itself, or by one call of its asker, no later than the turn
// in which its deadline has passed.
//
// Threads    One.
// Ownership  An asker must outlive its open queries; it learns of each one's end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/decide/deadline_queue.h"
#include "agent/decide/limit_table.h"
#include "agent/decide/local_shares.h"
#include "agent/store/store.h"
#include "protocol/decision.h"
#include "protocol/request.h"

namespace allowd::decide {

using store::SteadyTime;

// The tier of what an overflow bucket decided; no limit may have one of that name.
inline constexpr std::string_view kOverflowTier = "overflow";

class Asker {
 public:
  virtual void on_decision(std::uint64_t msgid, const protocol::Decision& decision) = 0;

 protected:
  ~Asker() = default;
};

struct Outcome {
  enum class Kind : std::uint8_t {
    decided,   // `decision`, which borrows its tier from the limit table
    refused,   // `code` and `reason`
    deferred,  // the asker will be called
  };

  Outcome() = default;
  // What `decide` returns is made in its place.
  template <class Decide>
  [[gnu::always_inline]] explicit Outcome(Decide decide) : kind(Kind::decided), decision(decide()) {}
  Outcome(protocol::ErrorCode why, std::string text)
      : kind(Kind::refused), code(why), reason(std::move(text)) {}

  Kind kind = Kind::deferred;
  protocol::Decision decision{};
  protocol::ErrorCode code = protocol::ErrorCode::internal;
  std::string reason{};
};

// What one question is about.
struct Subject {
  LimitPtr limit;
  const Rule* rule;  // the limit's
  limiter::Operation operation;
  std::int64_t cost;
  bool is_about_overflow = false;  // what the limit's overflow decided about the key
};

// A subject that somebody else keeps: counting references costs a query more than its arithmetic.
struct SubjectView {
  SubjectView(const Subject& subject)  // NOLINT(google-explicit-constructor)
      : SubjectView(subject.limit, subject.rule, subject.operation, subject.cost) {
    is_about_overflow = subject.is_about_overflow;
  }
  SubjectView(const LimitPtr& of, const Rule* by, limiter::Operation what, std::int64_t permits)
      : limit(of), rule(by), operation(what), cost(permits) {}

  const LimitPtr& limit;
  const Rule* rule;
  limiter::Operation operation;
  std::int64_t cost;
  bool is_about_overflow = false;
};

// A key and what stands for it under its limit, made once for a query.
struct HashedKey {
  std::string_view key;
  store::KeyHash hash;  // Limit::hash_of
};

// A query's limit and what is to be done, or why it cannot be asked.
struct Resolved {
  LimitPtr limit;  // null: `refusal` says why
  const Rule* rule = nullptr;
  limiter::Operation operation = limiter::Operation::take;
  Outcome refusal{};
};

// What a query is about, once it was looked for: valid as long as the limit table does not change, so not
// beyond a turn. Without a limit it was not, or the limit is none of the table's, and the rest means nothing.
struct Found {
  const LimitPtr* limit = nullptr;
  const Rule* rule = nullptr;
  store::KeyHash hash{};  // of the key, under the limit
};

class Decider final : private store::AnswerSink, public stats::MetricSource {
 public:
  // Longer deadlines are cut to this.
  static constexpr limiter::Micros kLongestDeadline = std::chrono::minutes(1);

  // `host` keeps limits of scope "host" and may be the store itself. `max_shares`: see LocalShares.
  Decider(store::Store& store, store::Store& host, LimitTable& limits, stats::Registry& registry,
          std::size_t max_shares = LocalShares::kMostKeys);

  // `operation` is what the method says; the query may make a take a force. `now` is when the turn began.
  Outcome ask(limiter::Operation operation, const protocol::Query& query, SteadyTime now, Asker& asker,
              std::uint64_t msgid);
  // The same for who asks the same again: `found` is empty, or what this found for that limit, key and plan.
  Outcome ask(limiter::Operation operation, const protocol::Query& query, Found& found, SteadyTime now,
              Asker& asker, std::uint64_t msgid);

  // The same in two steps, for who asks about many: `wait` is how long the store may take.
  [[nodiscard]] Resolved resolve(limiter::Operation operation, const protocol::Query& query);
  Outcome ask(SubjectView subject, std::string_view key, limiter::Micros wait, SteadyTime now, Asker& asker,
              std::uint64_t msgid);
  // Whether `ask` answers at once, whatever the store does.
  [[nodiscard]] bool is_decided_here(SubjectView subject) const;
  // Of a subject that is: what `ask` would say, without doing or counting it.
  [[nodiscard]] bool would_pass(SubjectView subject, std::string_view key, SteadyTime now);
  // Asks about different keys as one: all pass or none is charged. The asker is called for each, with its
  // index. False: the store cannot, and nothing was asked.
  [[nodiscard]] bool ask_together(std::span<const std::pair<Subject, std::string_view>> questions,
                                  SteadyTime deadline, SteadyTime now, Asker& asker);
  // Of the server that keeps what the subject charges: see Store::epoch.
  [[nodiscard]] std::optional<std::uint32_t> epoch_of(SubjectView subject, std::string_view key,
                                                      SteadyTime now) const;
  // Something taken for an allow_many that did not pass is given back, or cannot be.
  void count_compensation() { ++compensations_total_; }
  void count_dropped_compensation() { ++compensations_dropped_total_; }
  // When the turn began in which the last answer came.
  [[nodiscard]] SteadyTime now() const { return now_; }

  // Forgets all that the key has used under that configured limit, then calls `done`, maybe before returning.
  // bad_request: there is no such limit. retry_later: what counts now cannot be reached.
  void reset(std::string_view limit, std::string_view key, const std::function<void(const Failure&)>& done);

  // Answers what has run out of time. Call at the end of each turn, when all that had arrived has been read.
  void expire(SteadyTime now);
  // Answers whatever is still open, deadline or not: the agent stops.
  void expire_all(SteadyTime now);
  // When `expire` is needed next, if at all.
  [[nodiscard]] std::optional<SteadyTime> next_deadline() const;
  // Notes how long the queries took that were answered within the turn that began at `start`.
  void end_turn(SteadyTime start, SteadyTime end);

  [[nodiscard]] std::size_t open_queries() const { return deadlines_.size(); }
  void collect(std::vector<stats::Metric>& metrics) const override;

 private:
  // A query that waits for the store, or whose answer from the store is still to come after it was answered.
  struct Open {
    Asker* asker = nullptr;  // null: answered
    std::uint64_t msgid = 0;
    LimitPtr limit;
    const Rule* rule = nullptr;  // the limit's
    std::int64_t cost = 0;
    limiter::Operation operation = limiter::Operation::take;
    SteadyTime asked_at{};
    std::size_t shard = 0;  // of the key
    stats::HotKeys::Asked hot;
    std::uint32_t generation = 0;
    Fate fate = Fate::delivered;  // what it was told, if it was answered before the store did
    std::string key;              // of a limit whose policy is `local`, as is the next
    store::KeyHash hash{};
    std::uint64_t debit = 0;  // nobody's: what the key's local share was short of
  };

  Fate on_answer(std::uint64_t ticket, const store::Answer& answer, SteadyTime now) override;
  void on_taken(std::uint64_t ticket, std::span<const store::Taken> by_tier) override;
  [[nodiscard]] bool is_waiting(std::uint64_t ticket) const override;

  // In line what nearly every query comes by, each rarer turn in a function of its own.
  [[gnu::always_inline]] Outcome ask_found(const Found& found, limiter::Operation operation,
                                           const protocol::Query& query, SteadyTime now, Asker& asker,
                                           std::uint64_t msgid);
  [[gnu::always_inline]] Outcome ask_hashed(const SubjectView& subject, const HashedKey& key,
                                            limiter::Micros wait, SteadyTime now, Asker& asker,
                                            std::uint64_t msgid);
  [[gnu::always_inline]] Outcome ask_store(const SubjectView& subject, const HashedKey& key,
                                           const store::Question& question, SteadyTime now, Asker& asker,
                                           std::uint64_t msgid);
  Outcome ask_inline_limit(limiter::Operation operation, const protocol::Query& query, SteadyTime now,
                           Asker& asker, std::uint64_t msgid);
  // What an override decides, what is decided here though the store keeps it, or what a share has a say in.
  Outcome ask_rarely(const SubjectView& subject, const HashedKey& key, limiter::Micros wait, SteadyTime now,
                     Asker& asker, std::uint64_t msgid);
  [[nodiscard]] bool is_kept_here(const Limit& limit) const { return is_local_ || limit.is_host_wide(); }
  // Of a limit that the store keeps: whether more is asked for than it can ever hold.
  [[nodiscard]] static bool can_never_pass(const SubjectView& subject) {
    const bool asks_to_pass =
        subject.operation == limiter::Operation::take || subject.operation == limiter::Operation::peek;
    return asks_to_pass && !subject.rule->asked().can_hold(subject.cost);
  }
  [[nodiscard, gnu::always_inline]] static store::Question question_about(const SubjectView& subject,
                                                                          const HashedKey& key) {
    return {.operation = subject.operation,
            .definition = subject.rule->definition.get(),
            .limit_tag = subject.rule->tag,
            .key = key.key,
            .cost = subject.cost,
            .overflow = subject.limit->overflow(),
            .is_about_overflow = subject.is_about_overflow,
            .parts = subject.rule->parts,
            .hash = key.hash.salted(subject.rule->salt)};
  }
  // A question has been put to the store under this slot's ticket.
  void occupy(DeadlineQueue::Slot slot, SubjectView subject, const HashedKey& key,
              const store::Question& question, SteadyTime now, Asker& asker, std::uint64_t msgid);
  Outcome unknown_limit(std::string_view name);
  // Finds next_ticket_ anew, once the slots in use have changed.
  void choose_next_ticket();
  [[nodiscard]] DeadlineQueue::Slot take_slot();
  void release(DeadlineQueue::Slot slot);
  // Each makes the decision where the caller wants it, for a copy of what was just written stalls, and counts
  // it.
  [[gnu::always_inline]] protocol::Decision by_store(const Limit& limit, const Rule& rule,
                                                     const store::Answer& answer, protocol::Source source);
  protocol::Decision by_policy(SubjectView subject, const HashedKey& key, std::size_t shard, SteadyTime now);
  // By this host's share of the limit; none: it has none.
  std::optional<protocol::Decision> by_share(SubjectView subject, const HashedKey& key, std::size_t shard,
                                             SteadyTime now);
  // What the shares say, of `fixed` agents if that is not 0: the key's, or of a limit in parts those of the
  // parts that are out of reach. None: there is none.
  std::optional<store::Answer> decide_by_shares(const store::Question& question, std::int64_t fixed,
                                                std::size_t shard, SteadyTime now);
  // Before the store is asked: what keys that are held have to pass. Of parts the first that lets it pass is
  // the one to ask.
  [[nodiscard]] std::optional<store::Answer> hold_by_shares(store::Question& question, SteadyTime now);
  void forget_shares(const store::Question& question);
  protocol::Decision by_override(const Limit& limit, const Rule& rule);
  // Also what a limit in shadow would refuse.
  [[nodiscard]] static bool is_refusal(const protocol::Decision& decision) {
    return decision.verdict != protocol::Verdict::ok;
  }
  // What `decide` makes, as the answer to a query that arrived in this turn.
  template <class Decide>
  [[gnu::always_inline]] Outcome decided_now(const Limit& limit, const HashedKey& key, SteadyTime now,
                                             Decide decide) {
    Outcome outcome(decide);
    ++decided_this_turn_[static_cast<std::size_t>(outcome.decision.source)];
    registry_.hot_keys().count({key.hash.low, limit.label(), key.key}, is_refusal(outcome.decision), now);
    return outcome;
  }
  // What a share said, as a decision.
  protocol::Decision by_own_share(SubjectView subject, store::Answer answer, std::size_t shard,
                                  SteadyTime now);
  // Before the store is asked about the key: tells it what the key has used here meanwhile.
  void debit_shares(SubjectView subject, const HashedKey& key, SteadyTime now);
  void debit_share(SubjectView subject, store::Question about, SteadyTime now);
  void end_debit(std::uint64_t number, const store::Answer& answer, SteadyTime now);
  // A late grant pays for what the key's share had let through, whatever its own asker was told. Returns
  // what became of it.
  Fate settle_share(const Open& open, const store::Answer& answer, SteadyTime now);
  void decided_later(const protocol::Decision& decision, const Open& open, SteadyTime now);
  void expire_next(SteadyTime now);

  // So many names of unknown limits are logged.
  static constexpr std::size_t kMaxUnknownNames = 256;

  store::Store& store_;
  store::Store& host_;
  const bool is_local_;  // store_.is_local(): a property of the store, asked once
  LimitTable& limits_;
  stats::Registry& registry_;
  std::vector<Open> open_;
  std::vector<DeadlineQueue::Slot> free_;
  std::uint64_t next_ticket_ =
      0;  // of the question that will be put under the slot that take_slot takes next
  DeadlineQueue deadlines_;
  const std::size_t max_shares_;
  std::unique_ptr<LocalShares> shares_;  // from when the first was needed
  std::array<std::uint64_t, protocol::kSources> decided_this_turn_{};
  std::set<std::string, std::less<>> unknown_names_;
  std::uint64_t unknown_limits_total_ = 0;
  std::uint64_t unknown_plans_total_ = 0;
  std::uint64_t compensations_total_ = 0;
  std::uint64_t compensations_dropped_total_ = 0;
  SteadyTime now_{};
  std::uint64_t expired_total_ = 0;
  std::uint64_t late_answers_total_ = 0;
};

}  // namespace allowd::decide
