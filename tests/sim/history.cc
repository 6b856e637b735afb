// SPDX-License-Identifier: MIT
#include "tests/sim/history.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "agent/limiter/arithmetic.h"
#include "agent/prefilter/prefilter.h"
#include "tests/prefilter/fake_shared_store.h"
#include "tests/sim/random_limits.h"

namespace allowd::sim {
namespace {

using namespace std::chrono_literals;
using limiter::Decision;
using limiter::Definition;
using limiter::DefinitionPtr;
using limiter::Micros;
using limiter::Operation;
using limiter::TimePoint;
using limiter::Verdict;
using limiter::Wide;
using store::Answer;
using store::SteadyTime;
using testing::FakeSharedStore;
using testing::SharedAsked;
using testing::SharedKeys;
using testing::SharedValue;
using Fate = store::AnswerSink::Fate;
using Shape = Definition::Shape;

const std::string kNames[] = {"a", "bb", "ccc"};
constexpr std::size_t kKeys = std::size(kNames);

std::string describe(const Definition& definition) {
  std::string text = definition.is_shadow() ? "shadow" : "";
  for (const limiter::Tier& tier : definition.tiers()) {
    const limiter::Rate rate = tier.rate();
    text += std::string(text.empty() ? "" : " + ") + std::string(name_of(tier.algorithm)) + " " +
            std::to_string(rate.count) + "/" + std::to_string(rate.period.count()) + "us of " +
            std::to_string(tier.capacity()) + (tier.shadow ? " watching" : "");
  }
  return text;
}

// What one tier of one key may have charged by now, from the charges alone.
class TierBound {
 public:
  TierBound(const limiter::Tier& tier, Micros error) : tier_(tier), error_(error) {}

  // False: more than the limit.
  bool charge(std::int64_t cost, Micros now) {
    now = std::max(now, last_);  // what arrives late
    const limiter::Rate rate = tier_.rate();
    if (const auto* bucket = std::get_if<limiter::TokenBucket>(&tier_.algorithm)) {
      drain(now);
      need_ += Wide{cost} * rate.period.count();
      // A tick is refill that may come at once.
      const Micros late = 2 * error_ + bucket->tick();
      return need_ <= Wide{bucket->burst()} * rate.period.count() + Wide{rate.count} * late.count();
    }
    if (const auto* window = std::get_if<limiter::FixedWindow>(&tier_.algorithm)) {
      if (window->align() != limiter::FixedWindow::Align::clock || error_.count() > 0) return true;
      last_ = now;
      const std::int64_t number = now / rate.period;
      if (std::exchange(window_, number) != number) need_ = 0;
      return (need_ += cost) <= rate.count;
    }
    if (!std::holds_alternative<limiter::SlidingLog>(tier_.algorithm) || was_refunded_) return true;
    last_ = now;
    stamps_.emplace_back(now, cost);
    while (stamps_.front().first + rate.period - 2 * error_ <= now && stamps_.size() > 1) stamps_.pop_front();
    std::int64_t sum = 0;
    for (const auto& stamp : stamps_) sum += stamp.second;
    return sum <= rate.count;
  }
  void refund(std::int64_t cost, Micros now) {
    if (cost == 0 || last_ == 0us) return;  // nothing is written
    if (std::holds_alternative<limiter::TokenBucket>(tier_.algorithm)) {
      drain(std::max(now, last_));
      need_ = std::max<Wide>(0, need_ - Wide{cost} * tier_.rate().period.count());
    } else if (std::max(now, last_) / tier_.rate().period == window_) {
      need_ = std::max<Wide>(0, need_ - cost);
    }
    was_refunded_ = true;  // a log forgets its newest stamp, and with it the time
  }

 private:
  void drain(Micros now) {
    need_ = std::max<Wide>(0, need_ - Wide{tier_.rate().count} * (now - std::exchange(last_, now)).count());
  }

  const limiter::Tier& tier_;
  const Micros error_;
  Wide need_ = 0;  // a bucket's, in 1/period permits; a window's count
  Micros last_{0};
  std::int64_t window_ = 0;
  bool was_refunded_ = false;
  std::deque<std::pair<Micros, std::int64_t>> stamps_;
};

class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed), limits_(random_) {
    choose_scene();
    for (std::int64_t i = random_.between(1, 5); i > 0; --i)
      agents_.push_back(std::make_unique<Agent>(
          *this, prefilter::Prefilter::Options{.trust = trust_,
                                               .hold = hold_,
                                               .max_keys = random_.one_in(4) ? 4u : 16u,
                                               .max_waiting = random_.one_in(8) ? 4u : 1000u}));
    for (const auto& agent : agents_) {
      agent->error = any_error();
      begin_turn(*agent);
    }
  }

  Findings run() {
    for (int step = 0; step < 120 && found_.problem.empty(); ++step) {
      run_network(now_ + Micros{random_.of_any_size(longest_gap_.count())});
      act();
    }
    // All that is under way comes home.
    while (found_.problem.empty() && next_event()) run_network(*next_event());
    if (found_.problem.empty()) check_totals();
    return found_;
  }

  [[nodiscard]] std::string describe_limits() const {
    std::string text;
    for (const DefinitionPtr& definition : definitions_) text += "\n  " + describe(*definition);
    return text;
  }

 private:
  struct Ticket {
    DefinitionPtr definition;
    std::size_t key;
    Operation operation;
    std::int64_t cost;
    SteadyTime deadline;
    Fate fate = Fate::delivered;  // once it has expired
    bool is_open = true;          // not yet answered to the asker
    bool is_undecided = true;     // by the store
  };

  struct Agent final : store::AnswerSink {
    Agent(History& of, const prefilter::Prefilter::Options& options)
        : history(of), store(of.keys_, 1), prefilter(store, options) {
      prefilter.attach(*this);
    }
    Fate on_answer(std::uint64_t ticket, const Answer& answer, SteadyTime) override {
      return history.on_answer(*this, ticket, answer);
    }
    bool is_waiting(std::uint64_t ticket) const override {
      const auto found = open.find(ticket);
      return found != open.end() && found->second.is_open;
    }

    History& history;
    FakeSharedStore store;
    prefilter::Prefilter prefilter;
    std::map<std::uint64_t, Ticket> open;
    std::size_t definition = 0;
    Micros error{0};
    SteadyTime clock_read_at{};
    SteadyTime last_arrival{}, last_return{};
    std::uint64_t held_seen = 0;
  };

  void choose_scene() {
    definitions_.push_back(limits_.any());
    changes_limits_ = random_.one_in(4);
    changes_at_once_ = changes_limits_ && random_.one_in(2);
    if (changes_limits_) {
      definitions_.push_back(limits_.changed(*definitions_[0]));
      definitions_.push_back(random_.one_in(3) ? limits_.any() : limits_.changed(*definitions_[0]));
    }
    const limiter::Tier& tier = definitions_[0]->tiers()[0];
    const Micros refill = prefilter::refill_interval(tier);
    uncertainty_ = random_.choose<Micros>({0us, 0us, 2us, 100us, 1ms, 1ms, 10ms, 60ms});
    trust_ = random_.choose<Micros>({20ms, 1s, 1s, 10s});
    hold_ = random_.choose<Micros>({0us, 0us, 5ms, 100ms});
    hold_ = std::min(hold_, trust_);
    const Micros longest_trip = random_.choose<Micros>({50us, 500us, 5ms, 50ms});
    trip_ = longest_trip;
    longest_gap_ = std::clamp<Micros>(refill * random_.choose<std::int64_t>({1, 8}), 10us, trust_ / 2);
    patience_ = longest_trip * random_.choose<std::int64_t>({1, 4, 4, 20});
    has_refunds_ = random_.one_in(3);
    has_forces_ = random_.one_in(4);
    has_accidents_ = random_.one_in(3);
    now_ = SteadyTime{Micros{random_.between(1, 1'000'000'000)}};
    epoch_ = Micros{1'700'000'000'000'000 + random_.between(0, 86'400'000'000)};
    const bool is_bounded =
        !changes_limits_ && !has_accidents_ && !has_forces_ && !definitions_[0]->is_shadow();
    if (!is_bounded) return;
    for (auto& bounds : bounds_) {
      for (const limiter::Tier& each : definitions_[0]->tiers()) {
        if (!each.shadow) bounds.emplace_back(each, uncertainty_);
      }
    }
  }

  [[nodiscard]] TimePoint true_time() const { return TimePoint{now_.time_since_epoch() + epoch_}; }
  static std::string tag_of(const Definition& definition) {
    return store::make_limit_tag('n', "x", definition.state_kind());
  }
  void fail(std::string problem) {
    if (found_.problem.empty()) found_.problem = std::move(problem);
  }

  // --- The network.

  [[nodiscard]] std::optional<SteadyTime> next_event() const {
    std::optional<SteadyTime> next;
    const auto consider = [&](SteadyTime time) { next = next ? std::min(*next, time) : time; };
    for (const auto& agent : agents_) {
      if (!agent->store.calls.empty() && agent->store.calls.front().answers)
        consider(agent->store.calls.front().returns);
      const auto call = first_undecided(*agent);
      if (call != agent->store.calls.end()) consider(call->arrives);
    }
    return next;
  }
  static std::deque<FakeSharedStore::Call>::iterator first_undecided(Agent& agent) {
    return std::find_if(agent.store.calls.begin(), agent.store.calls.end(),
                        [](const auto& call) { return !call.answers; });
  }
  void run_network(SteadyTime until) {
    while (found_.problem.empty()) {
      const auto next = next_event();
      if (!next || *next > until) break;
      now_ = std::max(now_, *next);
      for (const auto& agent : agents_) {
        if (const auto call = first_undecided(*agent);
            call != agent->store.calls.end() && call->arrives <= now_)
          decide(*agent, *call);
        if (!agent->store.calls.empty() && agent->store.calls.front().answers &&
            agent->store.calls.front().returns <= now_) {
          begin_turn(*agent);
          found_.given_back += agent->store.deliver();
          end_turn(*agent);
        }
      }
    }
    now_ = std::max(now_, until);
  }
  void begin_turn(Agent& agent) {
    agent.store.now = now_;
    agent.store.offset = epoch_ + agent.error;
    agent.store.uncertainty = uncertainty_;
    agent.clock_read_at = now_;
    for (auto& [ticket, open] : agent.open) {
      if (!open.is_open || open.deadline > now_) continue;
      open.is_open = false;
      open.fate = random_.one_in(3) ? Fate::allowed_meanwhile : Fate::refused_meanwhile;
    }
  }
  void end_turn(Agent& agent) {
    do {
      agent.prefilter.flush(now_);
      agent.store.flush();
    } while (agent.prefilter.has_unasked());
    for (FakeSharedStore::Call& call : agent.store.calls) {
      if (call.arrives != SteadyTime{}) continue;
      call.arrives = agent.last_arrival =
          std::max(agent.last_arrival, now_ + Micros{random_.of_any_size(trip_.count())});
      call.returns = agent.last_return = std::max(
          {agent.last_return, call.arrives + Micros{random_.of_any_size(trip_.count())}, call.arrives});
    }
  }
  void decide(Agent& agent, FakeSharedStore::Call& call) {
    const auto charges = agent.store.arrive(call, true_time());
    for (std::size_t i = 0; i < call.questions.size(); ++i) {
      const SharedAsked& asked = call.questions[i];
      // When it was asked, by a right clock, is what refills it: not when it arrives.
      const Micros asked_at = call.asked.time_since_epoch() + epoch_;
      if (call.on_reset) {
        raise(asked.key);
        continue;
      }
      if (asked.operation == Operation::refund) raise(asked.key);
      const bool writes = charges[i] > 0 || asked.operation == Operation::force;
      if (writes) last_write_[{asked.key, asked.definition->digest()}] = now_;
      if (asked.operation == Operation::take) judge_charge(asked, charges[i], asked_at);
      if (asked.operation == Operation::refund) {
        for (TierBound& bound : bounds_[asked.key.size() - 1]) bound.refund(asked.cost, asked_at);
      }
    }
    charged_ += call.charged;
  }
  void judge_charge(const SharedAsked& asked, std::int64_t charged, Micros asked_at) {
    if (charged == 0) return;
    for (TierBound& bound : bounds_[asked.key.size() - 1]) {
      ++found_.bounds_checked;
      if (!bound.charge(charged, asked_at)) fail("more than the limit was charged");
    }
  }
  void raise(const std::string& key) { raised_[key] = now_; }

  // --- What happens.

  void act() {
    Agent& agent = *agents_[static_cast<std::size_t>(random_.between(0, std::ssize(agents_) - 1))];
    drift(agent);
    begin_turn(agent);
    if (has_accidents_ && random_.one_in(15)) have_accident(agent);
    if (changes_limits_ && !changes_at_once_ && random_.one_in(12))
      agent.definition = static_cast<std::size_t>(random_.between(0, std::ssize(definitions_) - 1));
    if (changes_at_once_ && random_.one_in(40)) {  // as a reload of the whole fleet
      for (const auto& each : agents_) each->definition = 1;
    }
    if (agent.store.can_ask_together && random_.one_in(15)) ask_together(agent);
    const std::size_t key = random_.one_in(4) ? static_cast<std::size_t>(random_.between(1, kKeys - 1)) : 0;
    for (std::int64_t i = random_.of_any_size(8); i > 0 && found_.problem.empty(); --i)
      ask(agent, random_.one_in(6) ? static_cast<std::size_t>(random_.between(0, kKeys - 1)) : key);
    end_turn(agent);
  }
  // A slewed correction: the host's idea of the time never goes back.
  void drift(Agent& agent) {
    if (uncertainty_ == 0us || agent.clock_read_at == now_ || !random_.one_in(6)) return;
    const Micros least = std::max(-uncertainty_, agent.error - (now_ - agent.clock_read_at));
    agent.error = Micros{random_.between(least.count(), uncertainty_.count())};
  }
  Micros any_error() { return Micros{random_.between(-uncertainty_.count(), uncertainty_.count())}; }
  void reconnect(Agent& agent) {
    agent.store.now = now_;
    for (const FakeSharedStore::Call& call : agent.store.calls) {
      if (call.answers) lost_ += call.charged;
    }
    agent.store.lose_connection();
    // Who asks before it is up again is told so.
    if (random_.one_in(2)) agent.prefilter.flush(now_);
    agent.store.is_up = true;
    now_ += 1us;
    agent.error = any_error();
    begin_turn(agent);
  }
  void have_accident(Agent& agent) {
    switch (random_.between(0, 4)) {
      case 0:
      case 1: reconnect(agent); break;
      case 2: {  // another server, whose clock differs, and which may know nothing
        epoch_ += Micros{random_.between(-3, 3) * random_.of_any_size(2'000'000)};
        if (random_.one_in(2)) lose_data();
        for (const auto& each : agents_) {
          reconnect(*each);
          end_turn(*each);
        }
        begin_turn(agent);
        break;
      }
      case 3: lose_data(); break;
      default: {
        const DefinitionPtr& definition = definitions_[agent.definition];
        const std::string tag = tag_of(*definition);
        const store::Question question{
            .definition = definition.get(), .limit_tag = tag, .key = kNames[random_.between(0, kKeys - 1)]};
        agent.prefilter.reset(question, [](bool) {});
      }
    }
  }
  void lose_data() {
    keys_.lose_all();
    for (const std::string& name : kNames) raise(name);
  }

  Operation operation() {
    if (has_refunds_ && random_.one_in(10)) return Operation::refund;
    if (has_forces_ && random_.one_in(15)) return Operation::force;
    return random_.one_in(20) ? Operation::peek : Operation::take;
  }
  std::int64_t cost(const Definition& definition, Operation operation) {
    const std::int64_t capacity = definition.strictest().capacity();
    if (operation != Operation::take && random_.one_in(8)) return 0;
    if (random_.one_in(2)) return 1;
    return random_.one_in(3) ? random_.of_any_size(capacity)
                             : random_.between(1, std::min<std::int64_t>(capacity, 5));
  }

  store::Question open_question(Agent& agent, std::size_t key, const std::string& tag, Operation does,
                                std::int64_t cost) {
    const DefinitionPtr& definition = definitions_[agent.definition];
    const std::uint64_t ticket = ++last_ticket_;
    const SteadyTime deadline = now_ + Micros{random_.between(1, patience_.count())};
    agent.open[ticket] = {definition, key, does, cost, deadline};
    return {does, definition.get(), tag, kNames[key], cost, ticket, deadline};
  }
  void ask(Agent& agent, std::size_t key) {
    const DefinitionPtr& definition = definitions_[agent.definition];
    const std::string tag = tag_of(*definition);
    const Operation does = operation();
    const store::Question question = open_question(agent, key, tag, does, cost(*definition, does));
    ++found_.queries;
    const Answer answer = agent.prefilter.ask(question, now_);
    if (answer.status == Answer::Status::promised) return;
    const Ticket ticket = agent.open.extract(question.ticket).mapped();
    if (answer.status == Answer::Status::decided) judge_local(agent, ticket, answer);
  }
  void ask_together(Agent& agent) {
    const DefinitionPtr& definition = definitions_[agent.definition];
    if (definition->shape() != Shape::bucket || definition->is_shadow()) return;
    const std::string tag = tag_of(*definition);
    std::vector<store::Question> questions;
    for (std::size_t key = 0; key < 2; ++key)
      questions.push_back(
          open_question(agent, key, tag, Operation::take, cost(*definition, Operation::take)));
    for (const store::Question& question : questions) together_.insert(question.ticket);
    found_.queries += 2;
    if (agent.prefilter.ask_together(questions)) return;
    fail("what a store would take together was not promised");
  }

  // --- What is answered.

  Fate on_answer(Agent& agent, std::uint64_t number, const Answer& answer) {
    auto node = agent.open.extract(number);
    if (node.empty()) {
      fail("a ticket was answered twice");
      return Fate::delivered;
    }
    const Ticket& ticket = node.mapped();
    const bool is_decided = answer.status == Answer::Status::decided;
    if (answer.status == Answer::Status::promised) fail("an answer promised another");
    if (is_decided && answer.is_local && ticket.is_open) judge_local(agent, ticket, answer);
    const bool is_grant = is_decided && !answer.is_local && ticket.operation == Operation::take &&
                          ticket.cost > 0 && testing::passes(*ticket.definition, answer.decision);
    const bool was_charged = is_grant && (!together_.contains(number) || is_together_charged(answer));
    if (was_charged) {
      if (ticket.is_open) {
        ++found_.granted;
        delivered_ += ticket.cost;
      } else {
        (ticket.fate == Fate::allowed_meanwhile ? allowed_late_ : refused_late_) += ticket.cost;
      }
    }
    return ticket.is_open ? Fate::delivered : ticket.fate;
  }
  // The prefilter hands the store's own answer on.
  static bool is_together_charged(const Answer& answer) {
    return static_cast<const store::SharedAnswer&>(answer).has_charged;
  }

  // Whether those ahead of it at its own host take all there can be.
  bool is_crowded_out(const Agent& agent, const Ticket& ticket) const {
    if (ticket.definition->shape() != Shape::bucket) return false;
    Wide ahead = 0;
    for (const auto& [number, other] : agent.open) {
      const bool counts = other.is_open && other.key == ticket.key && other.operation == Operation::take &&
                          other.definition == ticket.definition && other.cost <= ticket.cost &&
                          other.deadline >= ticket.deadline && &other != &ticket;
      if (counts) ahead += other.cost;
    }
    return ahead > ticket.definition->bucket().burst() - ticket.cost;
  }
  [[nodiscard]] bool was_raised(const Ticket& ticket) const {
    const SteadyTime since = now_ - trust_ - 2 * uncertainty_;
    const auto found = raised_.find(kNames[ticket.key]);
    if (found != raised_.end() && found->second >= since) return true;
    // Whoever counts by other rules may refill what these do not.
    return std::any_of(last_write_.begin(), last_write_.end(), [&](const auto& write) {
      return write.first.first == kNames[ticket.key] && write.first.second != ticket.definition->digest() &&
             write.second >= since;
    });
  }
  static std::uint64_t held_total(const Agent& agent) {
    std::vector<stats::Metric> metrics;
    agent.prefilter.collect(metrics);
    return static_cast<std::uint64_t>(std::find_if(metrics.begin(), metrics.end(), [](const auto& metric) {
                                        return metric.name == "prefilter_held_total";
                                      })->value);
  }

  void judge_local(Agent& agent, const Ticket& ticket, const Answer& answer) {
    ++found_.local_refusals;
    const Definition& definition = *ticket.definition;
    bool was_held = false;
    if (hold_ > 0us) {
      const std::uint64_t held = held_total(agent);
      was_held = held > std::exchange(agent.held_seen, held);
    }
    const Verdict expected = definition.is_shadow() ? Verdict::shadow : Verdict::limited;
    if (!answer.is_local) fail("a decision given at once does not say that it is local");
    if (answer.decision.verdict != expected) fail("a local decision is no refusal");
    if (answer.decision.retry_after <= 0us) fail("a local refusal names no wait");
    SharedValue value = keys_.of(tag_of(definition), kNames[ticket.key]);
    const SharedAsked asked{Operation::take, ticket.definition, "", "", ticket.cost};
    const TimePoint host_time = true_time() + agent.error;
    const Decision truth = testing::decide(value, asked, host_time, true_time()).first.decision;
    const Micros told = answer.decision.retry_after;
    const bool is_refused = !testing::passes(definition, truth);
    if (is_refused && told <= truth.retry_after) return;
    if (was_raised(ticket)) {
      ++found_.excused;
      return;
    }
    const Micros longest_hold = hold_ + 2 * uncertainty_;
    const bool is_only_longer = is_refused && hold_ > 0us && told <= longest_hold;
    if (is_only_longer || (was_held && told <= longest_hold) || is_crowded_out(agent, ticket)) {
      ++found_.held;
      return;
    }
    const auto text = [](Micros span) { return std::to_string(span.count()); };
    fail("refused cost " + std::to_string(ticket.cost) + " for " + text(told) + "us, the store " +
         (is_refused ? "refuses for " + text(truth.retry_after) + "us" : "lets it pass") + " (uncertainty " +
         text(uncertainty_) + ", error " + text(agent.error) + ", trust " + text(trust_) + ", hold " +
         text(hold_) + ", " + std::to_string(agents_.size()) + " agents)");
  }

  void check_totals() {
    for (const auto& agent : agents_) {
      if (!agent->open.empty()) fail(std::to_string(agent->open.size()) + " tickets were never answered");
      if (agent->prefilter.has_unasked()) fail("something is left to be asked");
      std::vector<stats::Metric> metrics;
      agent->prefilter.collect(metrics);
      for (const stats::Metric& metric : metrics) {
        if (metric.name == "prefilter_queries_waiting" && metric.value != 0)
          fail("the count of those who wait is off");
      }
    }
    if (refused_late_ != found_.given_back)
      fail("granted too late: " + std::to_string(refused_late_) +
           ", given back: " + std::to_string(found_.given_back));
    if (charged_ != delivered_ + allowed_late_ + refused_late_ + lost_)
      fail("charged: " + std::to_string(charged_) + ", granted: " + std::to_string(delivered_) +
           ", too late: " + std::to_string(allowed_late_ + refused_late_) +
           ", lost: " + std::to_string(lost_));
  }

  friend struct Agent;
  Random random_;
  RandomLimits limits_;
  Findings found_;
  std::vector<DefinitionPtr> definitions_;
  Micros uncertainty_{0}, trust_{0}, hold_{0}, trip_{0}, longest_gap_{0}, patience_{0};
  bool changes_limits_ = false, changes_at_once_ = false, has_refunds_ = false, has_forces_ = false,
       has_accidents_ = false;
  SteadyTime now_{};
  Micros epoch_{0};  // from now_ to the store's clock
  SharedKeys keys_;
  std::vector<TierBound> bounds_[kKeys];
  std::map<std::string, SteadyTime> raised_;                                // by key
  std::map<std::pair<std::string, std::uint32_t>, SteadyTime> last_write_;  // by key and rules
  std::vector<std::unique_ptr<Agent>> agents_;
  std::uint64_t last_ticket_ = 0;
  std::set<std::uint64_t> together_;
  std::int64_t charged_ = 0, delivered_ = 0, allowed_late_ = 0, refused_late_ = 0, lost_ = 0;
};

}  // namespace

Findings live_through(std::uint64_t seed) {
  History history(seed);
  Findings found = history.run();
  if (!found.problem.empty())
    found.problem = "seed " + std::to_string(seed) + ": " + found.problem + history.describe_limits();
  return found;
}

}  // namespace allowd::sim
