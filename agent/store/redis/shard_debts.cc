// SPDX-License-Identifier: MIT
//
// Shard, as far as permits that it granted to nobody: they are given back to the server that granted them, or
// to whom that has handed the key on, and to no other. One that took its place may never have heard of the
// charge, and what it gave back would be minted.
#include <algorithm>
#include <utility>

#include "agent/store/redis/shard.h"

namespace allowd::store {

using limiter::Operation;

namespace {

std::size_t count_debts(const ScriptCall& call) {
  return static_cast<std::size_t>(
      std::count_if(call.items().begin(), call.items().end(),
                    [](const auto& item) { return item.ticket == Batch::kNobody; }));
}

}  // namespace

void Shard::owe(const Batch& batch, const ScriptCall::Item& item, std::int64_t cost) {
  if (cost == 0) return;
  const limiter::Definition& definition = batch.call->definition(item);
  if (definition.shape() == limiter::Definition::Shape::counter) return;  // it counts refusals too
  if (batch.incarnation != link_.incarnation()) return drop_debts(1);
  owe_unsent(batch, item, cost);
}

void Shard::owe_unsent(const Batch& batch, const ScriptCall::Item& item, std::int64_t cost) {
  // As many as questions may be open: more cannot come late.
  if (owed_.size() >= max_questions_) return drop_debts(1);
  owed_.push_back({std::string(batch.call->redis_key(item)), batch.call->definition(item).shared_from_this(),
                   cost, batch.group});
}

bool Shard::give_back(const GiveBack& debt) {
  // While the breaker is open it may be the probe.
  if (!link_.is_up() || !breaker_.lets_through(loop_.now())) return false;
  if (breaker_.state() == Breaker::State::probing) probe_ = kNobody;
  open_call(debt.group, debt.definition->shape())
      .add(Operation::refund, *debt.definition, debt.redis_key, debt.cost, kNobody);
  ++questions_open_;
  return true;
}

void Shard::pay_debts() {
  while (!owed_.empty() && give_back(owed_.front())) owed_.pop_front();
}

void Shard::note_debts_sent(const ScriptCall& call) {
  given_back_total_ += static_cast<std::uint64_t>(
      std::count_if(call.items().begin(), call.items().end(), [](const ScriptCall::Item& item) {
        return item.ticket == kNobody && !item.was_repeated && item.redirections == 0;
      }));
}

std::pair<Batch, Batch> Shard::split_debts(const Batch& batch) {
  const auto shape = batch.call->definition(batch.call->items().front()).shape();
  Batch debts = batch, others = batch;
  debts.call = ScriptCall::make(shape);
  others.call = ScriptCall::make(shape);
  for (const ScriptCall::Item& item : batch.call->items())
    (item.ticket == kNobody ? debts : others).call->add_again(*batch.call, item);
  return {std::move(debts), std::move(others)};
}

void Shard::redirect(const Batch& batch, ServerError error, std::string_view text) {
  const std::size_t count = count_debts(*batch.call);
  // Who says ASK is the one to say where the key has gone.
  const bool is_same_server = batch.incarnation == link_.incarnation();
  if (count == 0 || (error == ServerError::ask && is_same_server))
    return router_->redirect(*this, batch, error, text);
  auto [debts, others] = split_debts(batch);
  if (!others.call->items().empty()) router_->redirect(*this, others, error, text);
  if (!is_same_server || !link_.is_up()) return drop_debts(count);
  if (error == ServerError::try_again) return take_over(debts, Passage::one_by_one);
  // One that was demoted says so, too.
  router_->doubt_map();
  link_.ask_if_still_master([this, debts = std::move(debts), moved = std::string(text)](bool is_master) {
    is_master ? router_->redirect(*this, debts, ServerError::moved, moved)
              : drop_debts(debts.call->items().size());
  });
}

void Shard::forget_debts() {
  drop_debts(owed_.size());
  owed_.clear();
  for (Batch& batch : std::exchange(waiting_, {})) {
    const std::size_t count = count_debts(*batch.call);
    if (count > 0) {
      const Batch before = std::exchange(batch, split_debts(batch).second);
      OpenCalls& open = open_[batch.group];
      ScriptCall* const after = batch.call->items().empty() ? nullptr : batch.call.get();
      std::replace(open.begin(), open.end(), before.call.get(), after);
      questions_open_ -= count;
      drop_debts(count);
      if (probe_ == kNobody) {
        probe_.reset();
        breaker_.on_probe_failed(Breaker::Failure::lost, loop_.now());
      }
    }
    if (!batch.call->items().empty()) waiting_.push_back(std::move(batch));
  }
}

}  // namespace allowd::store
