// SPDX-License-Identifier: MIT
//
// Decider, as far as whoever operates it: keys that are to be forgotten, and what it counts.
#include <memory>

#include "agent/decide/decider.h"
#include "protocol/quoted.h"

namespace allowd::decide {

using limiter::Operation;

void Decider::reset(std::string_view name, std::string_view key,
                    const std::function<void(const Failure&)>& done) {
  const LimitPtr* limit = limits_.find(name);
  if (limit == nullptr)
    return done(Error{Error::Code::bad_request, "no limit is named " + protocol::quoted(name)});
  // What the key used under another kind of limit counts again when that kind comes back. It may lie on
  // another server, and mostly is not there at all: only what counts now has to be forgotten for certain.
  const std::vector<KeptAs>& all = (*limit)->kept_as();
  const std::string& counts_now = (*limit)->rule_for(key, "").tag;
  struct Progress {
    std::size_t open;
    bool is_forgotten = true;
  };
  const auto progress = std::make_shared<Progress>(Progress{all.size()});
  store::Store& store = (*limit)->is_host_wide() ? host_ : store_;
  for (const auto& [tag, salt, definition, parts] : all) {
    const store::Question question{.operation = Operation::refund,
                                   .definition = definition.get(),
                                   .limit_tag = tag,
                                   .key = key,
                                   .cost = 0,
                                   .parts = parts,
                                   .hash = (*limit)->hash_of(key).salted(salt)};
    if (shares_) forget_shares(question);
    store.reset(question, [done, progress, has_to_be = tag == counts_now](bool is_forgotten) {
      if (has_to_be && !is_forgotten) progress->is_forgotten = false;
      if (--progress->open > 0) return;
      if (progress->is_forgotten) return done({});
      done(Error{Error::Code::retry_later, "the store cannot be reached"});
    });
  }
}

void Decider::collect(std::vector<stats::Metric>& metrics) const {
  using Kind = stats::Metric::Kind;
  const auto number = [](std::size_t value) { return static_cast<double>(value); };
  metrics.push_back(
      {"queries_open", Kind::gauge, "Queries that wait for the store.", number(deadlines_.size())});
  metrics.push_back({"queries_expired_total", Kind::counter,
                     "Queries that on_failure answered because the store took too long.",
                     number(expired_total_)});
  metrics.push_back({"compensations_total", Kind::counter,
                     "Charges given back because another item of their allow_many was refused.",
                     number(compensations_total_)});
  metrics.push_back({"compensations_dropped_total", Kind::counter,
                     "Of these, what stays charged, for another server may have taken the place of its own.",
                     number(compensations_dropped_total_)});
  metrics.push_back(
      {"new_keys_refused_total", Kind::counter,
       "Queries about new keys beyond max_new_keys_per_second, turned over to an overflow bucket.",
       static_cast<double>(limits_.new_keys_refused())});
  metrics.push_back({"unknown_limits_total", Kind::counter,
                     "Queries that named a limit which is not configured.", number(unknown_limits_total_)});
  metrics.push_back({"unknown_plans_total", Kind::counter,
                     "Queries that named a plan which their limit does not have.",
                     number(unknown_plans_total_)});
  metrics.push_back({"late_answers_total", Kind::counter, "Answers of the store to queries answered before.",
                     number(late_answers_total_)});
  LocalShares::collect(shares_.get(), metrics);
}

}  // namespace allowd::decide
