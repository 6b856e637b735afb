// SPDX-License-Identifier: MIT
//
// One allow_many under way: many questions, one reply.
//
// each   Every item is decided by itself.
// all    All items pass, or nothing stays charged and those that would pass answer as a peek. Items of one
//        key and limit count as their sum. A store that can decides them as one; else keys are asked in
//        order, and what was taken before a refusal is given back to the server that granted it: never more
//        than the limits admit, but for a moment others may be refused what is given back, and what is not
//        given back in time stays charged. Counted.
//
// Ownership  Copies all that it needs past `start`. Must outlive its open questions.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/decide/decider.h"

namespace allowd::decide {

class Many final : private Asker {
 public:
  // `done` is called once if `start` did not decide; it may destroy this.
  Many(Decider& decider, std::function<void()> done) : decider_(decider), done_(std::move(done)) {}
  Many(const Many&) = delete;
  Many& operator=(const Many&) = delete;

  // `decided` or `deferred`, or `refused` when an item cannot be asked at all; then nothing was.
  [[nodiscard]] Outcome::Kind start(std::span<const protocol::Query> items, bool all_or_none, SteadyTime now);
  [[nodiscard]] const Outcome& refusal() const { return refusal_; }
  // In the order of the items, once all is decided.
  [[nodiscard]] const std::vector<protocol::Decision>& decisions() const { return decisions_; }

 private:
  // Items of one key and limit.
  struct Part {
    Subject subject;
    std::string key;
    std::vector<std::size_t> items;
    protocol::Decision decision{};
    bool is_charged = false;
    std::optional<std::uint32_t> epoch = {};  // of what is charged, see Decider
  };
  // What is left to be asked, in order.
  struct Step {
    std::size_t part;
    limiter::Operation operation;
  };

  void on_decision(std::uint64_t id, const protocol::Decision& decision) override;
  void set(std::size_t item, const protocol::Decision& decision);
  bool gather(std::span<const protocol::Query> items, SteadyTime now);
  Outcome::Kind start_each(std::span<const protocol::Query> items, SteadyTime now);
  Outcome::Kind start_all(SteadyTime now);
  void decide_here(SteadyTime now);
  // Asks until an answer has to be waited for; true: all is decided.
  bool go_on(SteadyTime now);
  [[nodiscard]] bool can_be_given_back(const Part& part, SteadyTime now) const;
  void take_in(const Step& step, const protocol::Decision& decision, SteadyTime now);
  void note_charge(Part& part, SteadyTime now) const;
  void give_back(std::size_t refused);
  void finish();

  Decider& decider_;
  std::function<void()> done_;
  Outcome refusal_;
  std::vector<protocol::Decision> decisions_;
  std::deque<std::string> tiers_;  // what the decisions' tiers point into
  std::size_t open_ = 0;           // answers to come
  bool is_sequence_ = false;
  bool is_together_ = false;
  bool is_going_on_ = false;
  std::vector<Part> parts_;
  std::deque<Step> steps_;
  SteadyTime deadline_{};
};

}  // namespace allowd::decide
