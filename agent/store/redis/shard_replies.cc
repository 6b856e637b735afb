// SPDX-License-Identifier: MIT
//
// Shard, as far as what comes of its questions: answers, errors, and what these say of the server.

#include <algorithm>
#include <utility>

#include "agent/log/log.h"
#include "agent/store/redis/codec/counter_call.h"
#include "agent/store/redis/codec/server_error.h"
#include "agent/store/redis/shard.h"

namespace allowd::store {
namespace {

std::size_t shape_of(const ScriptCall& call) {
  return static_cast<std::size_t>(call.definition(call.items().front()).shape());
}

// Redis refuses a whole script so, or its first write at the latest: it does not look again once one was
// done.
bool has_done_nothing(ServerError kind) {
  return kind == ServerError::busy || kind == ServerError::no_memory || kind == ServerError::cannot_persist ||
         kind == ServerError::wrong_server || kind == ServerError::moved || kind == ServerError::ask ||
         kind == ServerError::cluster_down;
}

}  // namespace

bool Shard::has_failed(const Batch& batch, const Reply& reply) {
  const ScriptCall& call = *batch.call;
  if (reply == nullptr) {
    lost_total_ += call.items().size();
    // All that were lost with one connection are one failure.
    if (std::exchange(lost_at_, loop_.now()) != loop_.now() || holds_probe(call))
      note_failure(call, Breaker::Failure::lost, "the connection was lost");
    fail(call);
    return true;
  }
  if (!is_error(reply)) return false;
  const ErrorReply error = read_error(text_of(reply));
  if (error.kind == ServerError::script_lost) {
    repeat(batch);
    return true;
  }
  const bool is_redirected = error.kind == ServerError::moved || error.kind == ServerError::ask ||
                             error.kind == ServerError::try_again;
  if (router_ != nullptr && is_redirected) {
    note_answer(call);
    for (const ScriptCall::Item& item : call.items()) end_probe(item);
    questions_open_ -= call.items().size();
    redirect(batch, error.kind, text_of(reply));
    return true;
  }
  if (router_ != nullptr && error.kind == ServerError::cluster_down) router_->miss_keeper();
  if (!reveals_cluster(error)) {
    troubles_.count(error.kind);
    count_error(call, text_of(reply), error.code);
    const bool is_permitted = error.kind != ServerError::not_permitted;
    note_failure(call, is_permitted ? Breaker::Failure::refused : Breaker::Failure::not_permitted,
                 text_of(reply));
  }
  fail(call, has_done_nothing(error.kind));
  if (error.kind == ServerError::wrong_server) {
    link_.drop({Error::Code::retry_later, std::string(text_of(reply))});
  }
  return true;
}

bool Shard::reveals_cluster(const ErrorReply& error) {
  const bool does =
      error.kind == ServerError::moved || error.kind == ServerError::ask || error.code == "CROSSSLOT";
  if (router_ != nullptr || !does) return false;
  ++errors_[std::string(error.code)];
  if (!std::exchange(has_revealed_cluster_, true)) {
    log::error(
        "redis {}: this is a Cluster: set [redis] cluster = [\"{}\"] in place of url or shards; "
        "on_failure decides about keys that it keeps elsewhere",
        link_.name(), link_.url());
  }
  return true;
}

void Shard::on_reply(const Batch& batch, const Reply& reply) {
  if (reply != nullptr && is_error(reply) && read_error(text_of(reply)).kind == ServerError::not_permitted) {
    troubles_.forbid(shape_of(*batch.call), loop_.now());
    link_.explain_refusal(batch.call->redis_key(batch.call->items().front()));
  }
  if (has_failed(batch, reply)) return;
  if (!batch.call->fits(*reply)) {
    note_failure(*batch.call, Breaker::Failure::refused, "a malformed answer");
    fail(*batch.call);
    return link_.drop({Error::Code::system, "the script's answer is malformed"});
  }
  healed_total_ += ScriptCall::healed(*reply);
  batch.call->take_time(*reply);
  settle(batch, batch.call->answers(*reply));
}

void Shard::on_transaction(const Batch& batch, const Reply& reply) {
  // A user who may not run transactions: the script needs no other right than it has.
  if (reply != nullptr && is_error(reply)) {
    const std::string_view code = read_error(text_of(reply)).code;
    if (code == "NOPERM" || code == "EXECABORT" || code == "ERR") link_.stop_transactions();
  }
  if (has_failed(batch, reply)) return;
  const auto answers = static_cast<const CounterCall&>(*batch.call).transaction_answers(*reply);
  if (answers.empty()) {
    note_failure(*batch.call, Breaker::Failure::refused, "a malformed answer");
    fail(*batch.call);
    return link_.drop({Error::Code::system, "the answer to EXEC is malformed"});
  }
  settle(batch, answers);
}

void Shard::settle(const Batch& batch, const std::vector<SharedAnswer>& answers) {
  const ScriptCall& call = *batch.call;
  std::string& reported = reported_errors_[shape_of(call)];
  if (!reported.empty()) log::info("redis {}: {} succeeds again", link_.name(), name_of(call.algorithm()));
  reported.clear();
  note_answer(call);
  for (std::size_t i = 0; i < call.items().size(); ++i) {
    const ScriptCall::Item& item = call.items()[i];
    const SharedAnswer& answer = answers[i];
    if (answer.status == Answer::Status::promised) {
      repeat(batch, item);
      continue;
    }
    --questions_open_;
    end_probe(item);
    if (answer.status == Answer::Status::failed) ++unknown_format_total_;
    if (item.ticket == kNobody) continue;
    owe(batch, item, sink_->on_answer(item.ticket, answer, loop_.now()));
  }
}

void Shard::repeat(const Batch& batch) {
  if (!link_.is_up()) return drop_unsent(batch);  // nothing was charged
  ++script_reloads_total_;
  link_.reload_script();
  if (batch.call->is_together()) {
    const bool was_repeated = batch.call->items().front().was_repeated;
    if (was_repeated || !add_together_again(batch, batch.is_asking, false)) fail(*batch.call, true);
    return;
  }
  for (const ScriptCall::Item& item : batch.call->items()) repeat(batch, item);
}

void Shard::repeat(const Batch& batch, const ScriptCall::Item& item) {
  const bool is_anothers = item.ticket == kNobody && batch.incarnation != link_.incarnation();
  if (!link_.is_up() || !is_wanted(item) || item.was_repeated || is_anothers)
    return answer_failed(item, true);
  ScriptCall::Item again = item;
  again.was_repeated = true;
  add_again(batch, again, batch.is_asking, batch.is_asking);
}

void Shard::answer_failed(const ScriptCall::Item& item, bool is_unasked) {
  --questions_open_;
  end_probe(item);
  if (item.ticket == kNobody) {
    if (is_unasked) drop_debts(1);
    return;
  }
  SharedAnswer failed;
  failed.is_unasked = is_unasked;
  static_cast<void>(sink_->on_answer(item.ticket, failed, loop_.now()));
}

void Shard::fail(const ScriptCall& call, bool is_unasked) {
  for (const ScriptCall::Item& item : call.items()) answer_failed(item, is_unasked);
}

void Shard::count_error(const ScriptCall& call, std::string_view text, std::string_view code) {
  constexpr std::size_t kMaxCodes = 32;
  if (errors_.size() < kMaxCodes || errors_.contains(code)) ++errors_[std::string(code)];
  std::string& reported = reported_errors_[shape_of(call)];
  if (reported == code) return;  // one line per change of state
  reported = code;
  log::warn("redis {}: {} fails: {}; on_failure decides meanwhile", link_.name(), name_of(call.algorithm()),
            text);
}

bool Shard::holds_probe(const ScriptCall& call) const {
  return probe_ && std::any_of(call.items().begin(), call.items().end(),
                               [this](const ScriptCall::Item& item) { return item.ticket == *probe_; });
}

void Shard::note_failure(const ScriptCall& call, Breaker::Failure why, std::string_view text) {
  if (holds_probe(call) || is_wanted(call)) note_trouble(text);
  if (holds_probe(call)) return breaker_.on_probe_failed(why, loop_.now());
  // Where nobody waits any more, that has been counted.
  if (is_wanted(call) && breaker_.on_failure(why, loop_.now())) report_opened(text);
}

void Shard::note_expired(limiter::Micros waited, SteadyTime now) {
  if (!link_.is_up()) return;  // nobody waits for the server
  if (breaker_.state() == Breaker::State::closed) note_trouble(kNoAnswer);
  if (breaker_.on_timeout(waited, now)) report_opened(kNoAnswer);
}

void Shard::note_trouble(std::string_view what) {
  last_trouble_ = what;
  troubled_at_ = loop_.now();
}

void Shard::report_opened(std::string_view why) const {
  log::warn("redis {}: {} failures in a row, the last: {}; on_failure answers at once but for probes",
            link_.name(), Breaker::kFailuresToOpen, why);
}

void Shard::note_answer(const ScriptCall& call) {
  if (breaker_.is_untroubled() || !is_wanted(call)) return;
  if (breaker_.state() != Breaker::State::closed) log::info("redis {}: answers in time again", link_.name());
  breaker_.on_success();
}

void Shard::end_probe(const ScriptCall::Item& item) {
  if (!probe_ || item.ticket != *probe_) return;
  probe_.reset();
  note_trouble(kNoAnswer);
  breaker_.on_probe_failed(Breaker::Failure::timed_out, loop_.now());
}

}  // namespace allowd::store
