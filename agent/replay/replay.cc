// SPDX-License-Identifier: MIT
#include "agent/replay/replay.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "agent/replay/history.h"
#include "agent/replay/redis_history_store.h"
#include "agent/replay/summary.h"
#include "agent/store/memory/memory_store.h"

namespace allowd::replay {
namespace {

constexpr std::uint64_t kLinesPerProgress = 10'000;

// Reads one line, its end left out, like std::getline: false at the end, and when a line does not fit, which
// leaves `in` short of its end.
bool read_line(std::istream& in, std::span<char> buffer, std::string_view& line) {
  if (!in.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()))) return false;
  const auto taken = static_cast<std::size_t>(in.gcount());
  line = {buffer.data(), in.eof() ? taken : taken - 1};
  return true;
}

// Either store, asked one question at a given time.
class HistoryStore {
 public:
  static Result<HistoryStore> open(const config::Config& config, const Options& options) {
    HistoryStore store;
    if (options.store == "memory") {
      store.memory_ = std::make_unique<store::MemoryStore>(store::MemoryStore::Options{
          .max_keys = static_cast<std::size_t>(config.agent.max_keys), .epoch_offset = {}, .secret = {}});
      return store;
    }
    auto endpoint = store::parse_redis_url(options.store);
    if (!endpoint) return std::move(endpoint.error()).within("--store");
    char prefix[64];
    std::snprintf(prefix, sizeof prefix, "allowd-replay-%016llx%016llx",
                  static_cast<unsigned long long>(options.random[0]),
                  static_cast<unsigned long long>(options.random[1]));
    auto redis =
        RedisHistoryStore::connect(*endpoint, config.redis ? config.redis->tls : tls::TlsOptions(), prefix);
    if (!redis) return std::move(redis.error());
    store.redis_ = std::move(*redis);
    return store;
  }

  Result<limiter::Decision> decide(const store::Question& question, limiter::TimePoint now) {
    if (redis_) return redis_->decide(question, now);
    return memory_->decide(question, now).decision;
  }

  // As a decision names it.
  [[nodiscard]] std::string_view source() const { return redis_ ? "store" : "local"; }

 private:
  std::unique_ptr<store::MemoryStore> memory_;
  std::unique_ptr<RedisHistoryStore> redis_;
};

}  // namespace

Failure run(const config::Config& config, const Options& options, std::istream& in, std::ostream& out,
            std::ostream& report) {
  const auto limit =
      std::find_if(config.limits.begin(), config.limits.end(),
                   [&](const config::LimitConfig& known) { return known.name == options.limit; });
  if (limit == config.limits.end()) {
    return Error{Error::Code::bad_request, "no limit is named " + options.limit + " in the config"};
  }
  auto store = HistoryStore::open(config, options);
  if (!store) return std::move(store.error());
  limiter::DefinitionPtr definition = limit->definition;
  Summary summary;

  std::vector<char> buffer(kMaxLineBytes + 1);  // and a NUL
  std::string_view text;
  std::uint64_t number = 1;
  for (; read_line(in, buffer, text); ++number) {
    if (options.shows_progress && number % kLinesPerProgress == 0)
      report << "\r" << number << " lines" << std::flush;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = "line " + std::to_string(number);
    auto step = read_step(text, options.limit);
    if (!step) return std::move(step.error()).within(place);
    if (step->new_limit) {
      definition = step->new_limit->definition;
    } else {
      const std::string tag = store::make_limit_tag('n', options.limit, definition->state_kind());
      const store::Question question{step->operation, definition.get(), tag, step->key, step->cost, 0};
      auto decision = store->decide(question, step->at);
      if (!decision) return std::move(decision.error()).within(place);
      add_decision(step->line, *decision, definition->tiers()[decision->tier].name, store->source());
      summary.add(step->key, *decision);
    }
    out << step->line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
  if (!in.eof())
    return Error{Error::Code::bad_request, "line " + std::to_string(number) + ": is over 65536 bytes"};
  out.flush();
  if (!out) return Error{Error::Code::system, "cannot write the answers"};
  if (options.shows_progress) report << "\r";
  report << summary.text();
  return {};
}

}  // namespace allowd::replay
