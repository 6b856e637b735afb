// SPDX-License-Identifier: MIT
#include "agent/decide/many.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace allowd::decide {

using limiter::Operation;
using Kind = Outcome::Kind;

Kind Many::start(std::span<const protocol::Query> items, bool all_or_none, SteadyTime now) {
  decisions_.resize(items.size());
  if (!gather(items, now)) return Kind::refused;
  return all_or_none ? start_all(now) : start_each(items, now);
}

// Finds every item's limit before any is asked: an item that cannot be asked refuses the whole.
bool Many::gather(std::span<const protocol::Query> items, SteadyTime now) {
  std::map<std::pair<std::string, std::string>, std::size_t> known;
  limiter::Micros wait = Decider::kLongestDeadline;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Resolved resolved = decider_.resolve(Operation::take, items[i]);
    if (!resolved.limit) {
      refusal_ = std::move(resolved.refusal);
      return false;
    }
    const limiter::Micros patience =
        items[i].deadline_us ? limiter::Micros{*items[i].deadline_us} : resolved.limit->deadline();
    wait = std::min(wait, patience);
    // Rules of the kinds that count nothing have no tag, and are parts by themselves.
    const std::string tag = resolved.rule->tag.empty() ? "#" + std::to_string(i) : resolved.rule->tag;
    const auto [place, is_new] = known.try_emplace({tag, std::string(items[i].key)}, parts_.size());
    if (is_new) {
      parts_.push_back(
          {{resolved.limit, resolved.rule, resolved.operation, 0}, std::string(items[i].key), {}});
    }
    Part& part = parts_[place->second];
    const std::int64_t room = limiter::kMaxUsed - part.subject.cost;
    part.subject.cost += std::min(items[i].cost, room);
    part.items.push_back(i);
  }
  deadline_ = now + wait;
  return true;
}

void Many::set(std::size_t item, const protocol::Decision& decision) {
  decisions_[item] = decision;
  // A definition may be gone when the last answer has come.
  if (!decision.tier.empty()) decisions_[item].tier = tiers_.emplace_back(decision.tier);
}

Kind Many::start_each(std::span<const protocol::Query> items, SteadyTime now) {
  ++open_;  // ours: no answer ends it all while we are still asking
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Outcome outcome = decider_.ask(Operation::take, items[i], now, *this, i);
    if (outcome.kind == Kind::decided) set(i, outcome.decision);
    if (outcome.kind == Kind::deferred) ++open_;
  }
  return --open_ == 0 ? Kind::decided : Kind::deferred;
}

Kind Many::start_all(SteadyTime now) {
  const bool is_here = std::all_of(parts_.begin(), parts_.end(),
                                   [&](const Part& part) { return decider_.is_decided_here(part.subject); });
  if (is_here) {
    decide_here(now);
    return Kind::decided;
  }
  std::vector<std::pair<Subject, std::string_view>> questions;
  for (const Part& part : parts_) questions.emplace_back(part.subject, part.key);
  if (decider_.ask_together(questions, deadline_, now, *this)) {
    is_together_ = true;
    open_ = parts_.size();
    return Kind::deferred;
  }
  // One order for everybody: two callers with the same keys do not refuse each other.
  is_sequence_ = true;
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
    return std::tie(a.subject.rule->tag, a.key) < std::tie(b.subject.rule->tag, b.key);
  });
  for (std::size_t i = 0; i < parts_.size(); ++i) steps_.push_back({i, parts_[i].subject.operation});
  return go_on(now) ? Kind::decided : Kind::deferred;
}

// Nobody else asks meanwhile: look at all, then take all.
void Many::decide_here(SteadyTime now) {
  bool do_all_pass = true;
  for (const Part& part : parts_)
    do_all_pass = decider_.would_pass(part.subject, part.key, now) && do_all_pass;
  const bool looked_well = do_all_pass;
  for (Part& part : parts_) {
    if (!do_all_pass && part.subject.operation == Operation::take) part.subject.operation = Operation::peek;
    part.decision = decider_.ask(part.subject, part.key, deadline_ - now, now, *this, 0).decision;
    note_charge(part, now);
    do_all_pass = do_all_pass && part.decision.allowed;
  }
  if (looked_well && !do_all_pass) {
    // Two keys for which there was one place.
    for (Part& part : parts_) {
      if (!std::exchange(part.is_charged, false)) continue;
      decider_.count_compensation();
      for (const Operation operation : {Operation::refund, Operation::peek}) {
        part.subject.operation = operation;
        part.decision = decider_.ask(part.subject, part.key, deadline_ - now, now, *this, 0).decision;
      }
    }
  }
  finish();
}

bool Many::go_on(SteadyTime now) {
  if (std::exchange(is_going_on_, true)) return false;
  while (!steps_.empty() && open_ == 0) {
    const Step step = steps_.front();
    const Part& part = parts_[step.part];
    if (step.operation == Operation::refund && !can_be_given_back(part, now)) {
      decider_.count_dropped_compensation();
      steps_.pop_front();
      continue;
    }
    Subject subject = part.subject;
    subject.operation = step.operation;
    const Outcome outcome =
        decider_.ask(subject, part.key, std::max(limiter::Micros{0}, deadline_ - now), now, *this, step.part);
    if (outcome.kind == Kind::deferred) {
      ++open_;
      break;
    }
    steps_.pop_front();
    take_in(step, outcome.decision, now);
  }
  is_going_on_ = false;
  if (!steps_.empty() || open_ > 0) return false;
  finish();
  return true;
}

// One that took the granting server's place may never have heard of the charge.
bool Many::can_be_given_back(const Part& part, SteadyTime now) const {
  if (part.decision.source == protocol::Source::fallback) return true;  // this host's own share granted it
  return part.epoch && part.epoch == decider_.epoch_of(part.subject, part.key, now);
}

void Many::take_in(const Step& step, const protocol::Decision& decision, SteadyTime now) {
  Part& part = parts_[step.part];
  if (step.operation == Operation::refund) return;  // the peek behind it shows what came of it
  part.decision = decision;
  if (!decision.tier.empty()) part.decision.tier = tiers_.emplace_back(decision.tier);
  if (step.operation == Operation::peek) return;
  note_charge(part, now);
  if (!decision.allowed) give_back(step.part);
}

void Many::note_charge(Part& part, SteadyTime now) const {
  const protocol::Decision& decision = part.decision;
  if (part.subject.operation == Operation::peek) return;
  // What the policy let through has cost nobody anything, unless this host's share did.
  const bool has_cost = decision.source != protocol::Source::fallback ||
                        part.subject.limit->on_failure() == config::FailurePolicy::local;
  part.is_charged =
      decision.allowed && decision.verdict == protocol::Verdict::ok && has_cost && part.subject.cost > 0;
  // What was taken there is given back there.
  part.subject.is_about_overflow = decision.tier == kOverflowTier;
  if (part.is_charged) part.epoch = decider_.epoch_of(part.subject, part.key, now);
}

// Everything before was taken, nothing behind was asked.
void Many::give_back(std::size_t refused) {
  steps_.clear();
  for (std::size_t i = 0; i < refused; ++i) {
    if (!parts_[i].is_charged) continue;
    decider_.count_compensation();
    steps_.push_back({i, Operation::refund});
    steps_.push_back({i, Operation::peek});
  }
  for (std::size_t i = refused + 1; i < parts_.size(); ++i) steps_.push_back({i, Operation::peek});
}

void Many::on_decision(std::uint64_t id, const protocol::Decision& decision) {
  --open_;
  if (is_sequence_) {
    const Step step = steps_.front();
    steps_.pop_front();
    take_in(step, decision, decider_.now());
    if (!go_on(decider_.now())) return;
  } else if (is_together_) {
    parts_[id].decision = decision;
    if (!decision.tier.empty()) parts_[id].decision.tier = tiers_.emplace_back(decision.tier);
    if (open_ > 0) return;
    finish();
  } else {
    set(id, decision);
    if (open_ > 0) return;
  }
  const auto done = std::move(done_);  // outlives this
  done();
}

void Many::finish() {
  for (const Part& part : parts_) {
    for (const std::size_t item : part.items) decisions_[item] = part.decision;
  }
}

}  // namespace allowd::decide
