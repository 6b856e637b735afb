// SPDX-License-Identifier: MIT
#include "agent/admin/commands.h"

#include <algorithm>
#include <charconv>
#include <memory>

#include "agent/config/units.h"
#include "protocol/caps.h"
#include "protocol/quoted.h"

namespace allowd::admin {
namespace {

std::string error(std::string_view code, std::string_view text) {
  return "error: " + std::string(code) + ": " + std::string(text) + "\n";
}

std::string describe(const protocol::Query& query, const protocol::Decision& decision) {
  using protocol::Value;
  return Value(Value::Map{{"limit", protocol::quoted(query.limit)},
                          {"key", protocol::quoted(query.key)},
                          {"verdict", name_of(decision.verdict)},
                          {"source", name_of(decision.source)},
                          {"tier", protocol::quoted(decision.tier)},
                          {"capacity", decision.limit},
                          {"remaining", decision.remaining},
                          {"retry_after_us", decision.retry_after_us},
                          {"reset_after_us", decision.reset_after_us},
                          {"more_after_us", decision.more_after_us}})
      .to_text();
}

// Waits for the store's answer about one key.
class KeyQuestion final : public decide::Asker {
 public:
  KeyQuestion(std::string limit, std::string key, Commands::Reply reply)
      : limit_(std::move(limit)), key_(std::move(key)), reply_(std::move(reply)) {}

  [[nodiscard]] protocol::Query query() const {
    protocol::Query query;
    query.limit = limit_;
    query.key = key_;
    return query;
  }
  void answer(const protocol::Decision& decision) { reply_(describe(query(), decision)); }
  void on_decision(std::uint64_t, const protocol::Decision& decision) override {
    answer(decision);
    const auto last = std::move(forget);  // outlives this
    last();
  }
  // Called after the answer; may destroy this.
  std::function<void()> forget;

 private:
  std::string limit_;
  std::string key_;
  Commands::Reply reply_;
};

}  // namespace

Commands::Commands(const Reporter& reporter, decide::LimitTable& limits, decide::Decider& decider,
                   Reload reload)
    : reporter_(reporter), limits_(limits), decider_(decider), reload_(std::move(reload)) {}

const std::vector<Commands::Command>& Commands::table() {
  static const std::vector<Command> commands = {
      {"help", "", "this list", 0, 0, &Commands::help},
      {"ping", "", "answers pong", 0, 0, &Commands::ping},
      {"info", "", "version, store, limits, as `path: value` lines", 0, 0, &Commands::info},
      {"stats", "[json|prom]", "counters, as text, JSON or Prometheus's format", 0, 1, &Commands::stats},
      {"top", "[N]", "the N (10, at most 100) keys asked about most, and refused most", 0, 1, &Commands::top},
      {"limits", "", "the configured limits", 0, 0, &Commands::limits},
      {"key", "LIMIT KEY", "what a key has left; charges nothing. Quote bytes as \"a\\x00b\"", 2, 2,
       &Commands::key},
      {"reset", "LIMIT KEY", "forgets all that a key has used, here and on Redis", 2, 2, &Commands::reset},
      {"shards", "", "the servers that keep limits", 0, 0, &Commands::shards},
      {"reload", "", "loads the configuration file anew; a bad one changes nothing", 0, 0, &Commands::reload},
  };
  return commands;
}

void Commands::run(std::string_view line, store::SteadyTime now, const Reply& reply) {
  auto words = protocol::split_words(line);
  if (!words)
    return reply(error("bad_request", "a quote is not closed, or an escape is not \\\" \\\\ or \\xNN"));
  if (words->empty()) return reply(error("bad_request", "no command; try help"));
  const auto command = std::find_if(table().begin(), table().end(), [&](const Command& candidate) {
    return candidate.name == words->front();
  });
  if (command == table().end()) {
    return reply(error("unknown_command", protocol::quoted(words->front()) + "; try help"));
  }
  words->erase(words->begin());
  if (words->size() < command->least_words || words->size() > command->most_words) {
    return reply(
        error("bad_request", "usage: " + std::string(command->name) + " " + std::string(command->arguments)));
  }
  (this->*command->run)(*words, now, reply);
}

void Commands::help(const Words&, store::SteadyTime, const Reply& reply) {
  std::string text;
  for (const Command& command : table()) {
    std::string usage = std::string(command.name) + " " + std::string(command.arguments);
    usage.resize(std::max<std::size_t>(usage.size(), 20), ' ');
    text += usage + "  " + std::string(command.purpose) + "\n";
  }
  reply(text);
}

void Commands::ping(const Words&, store::SteadyTime, const Reply& reply) { reply("pong\n"); }

void Commands::info(const Words&, store::SteadyTime now, const Reply& reply) {
  reply(reporter_.info(now).to_text());
}

void Commands::stats(const Words& arguments, store::SteadyTime, const Reply& reply) {
  if (arguments.empty()) return reply(reporter_.stats_as_text());
  if (arguments[0] == "json") return reply(reporter_.stats().to_json() + "\n");
  if (arguments[0] == "prom") return reply(reporter_.stats_for_prometheus());
  reply(error("bad_request", "usage: stats [json|prom]"));
}

void Commands::top(const Words& arguments, store::SteadyTime now, const Reply& reply) {
  constexpr std::size_t kUsual = 10, kMost = 100;
  std::size_t rows = kUsual;
  if (!arguments.empty()) {
    const std::string& word = arguments[0];
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), rows);
    const bool is_number = problem == std::errc{} && end == word.data() + word.size();
    if (!is_number || rows < 1 || rows > kMost)
      return reply(error("bad_request", "usage: top [N], N from 1 to 100"));
  }
  reply(reporter_.top(rows, now));
}

void Commands::limits(const Words&, store::SteadyTime, const Reply& reply) {
  std::string text =
      "# name tier algorithm rate capacity window shadow scope on_failure deadline overrides plans\n";
  for (const decide::LimitPtr& limit : limits_.configured()) {
    const limiter::Definition& definition = *limit->base().definition;
    for (const limiter::Tier& tier : definition.tiers()) {
      text += protocol::quoted(limit->name()) + " " + protocol::quoted(tier.name) + " " +
              std::string(name_of(tier.algorithm)) + " " + config::print(tier.rate()) + " " +
              std::to_string(tier.capacity()) + " " + config::print(tier.window()) + " " +
              (definition.is_shadow() || tier.shadow ? "yes" : "no") + " " +
              (limit->is_host_wide() ? "host" : "global") + " " +
              std::string(config::name_of(limit->on_failure())) + " " + config::print(limit->deadline()) +
              " " + std::to_string(limit->overrides()) + " " + std::to_string(limit->plans()) + "\n";
    }
  }
  reply(text);
}

void Commands::shards(const Words&, store::SteadyTime, const Reply& reply) { reply(reporter_.shards()); }

void Commands::reset(const Words& arguments, store::SteadyTime, const Reply& reply) {
  if (arguments[1].size() > protocol::kMaxKeyBytes)
    return reply(error("too_large", "key is over 1024 bytes"));
  decider_.reset(arguments[0], arguments[1], [reply](const Failure& problem) {
    if (!problem) return reply("reset\n");
    const bool is_asked_wrongly = problem->code == Error::Code::bad_request;
    reply(error(is_asked_wrongly ? "unknown_limit" : "unavailable", problem->message));
  });
}

void Commands::reload(const Words&, store::SteadyTime, const Reply& reply) {
  reload_([reply](const Result<std::string>& outcome) {
    reply(outcome ? *outcome : error("bad_request", outcome.error().message));
  });
}

void Commands::key(const Words& arguments, store::SteadyTime now, const Reply& reply) {
  if (arguments[1].size() > protocol::kMaxKeyBytes)
    return reply(error("too_large", "key is over 1024 bytes"));
  auto question = std::make_shared<KeyQuestion>(arguments[0], arguments[1], reply);
  const auto outcome = decider_.ask(limiter::Operation::peek, question->query(), now, *question, 0);
  switch (outcome.kind) {
    case decide::Outcome::Kind::decided: return question->answer(outcome.decision);
    case decide::Outcome::Kind::refused: return reply(error(name_of(outcome.code), outcome.reason));
    case decide::Outcome::Kind::deferred:
      question->forget = [this, id = question.get()] { open_questions_.erase(id); };
      open_questions_.emplace(question.get(), question);
  }
}

}  // namespace allowd::admin
