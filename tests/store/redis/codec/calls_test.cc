// SPDX-License-Identifier: MIT
//
// The calls for tiers, logs and counters: their arguments, and what replies mean. That the script does the
// same as the limiter is for tests/property.
#include <chrono>
#include <initializer_list>
#include <string>
#include <vector>

#include "agent/store/redis/codec/counter_call.h"
#include "agent/store/redis/codec/log_call.h"
#include "agent/store/redis/codec/tier_call.h"
#include "tests/store/redis/codec/replies.h"
#include "tests/support/printing.h"

namespace allowd::store {
namespace {

using namespace std::chrono_literals;
using limiter::Operation;
using limiter::Verdict;
using testing::integers;
using testing::parsed;

template <class Rules>
Rules made(Result<Rules> rules) {
  REQUIRE(rules);
  return *rules;
}
limiter::DefinitionPtr definition_of(std::vector<limiter::Tier> tiers, bool shadow = false) {
  return made(limiter::Definition::make(std::move(tiers), shadow));
}
limiter::Tier bucket_tier(std::string name, limiter::Rate rate, std::int64_t burst, bool shadow = false) {
  return {std::move(name), made(limiter::TokenBucket::make(rate, burst)), shadow};
}
limiter::DefinitionPtr counter(std::int64_t count, limiter::Micros period) {
  return definition_of({{"", made(limiter::Counter::make({count, period})), false}});
}

std::string written(ScriptCall& call, limiter::Micros now) {
  ByteBuffer out;
  call.write(out, "sha", limiter::TimePoint{now});
  return std::string(out.view());
}
// How many parts a command says that it has, and how many it has.
void check_is_whole(const std::string& command) {
  const std::size_t said = std::stoul(command.substr(1));
  std::size_t parts = 0;
  for (std::size_t at = command.find("\r\n") + 2; at < command.size(); ++parts) {
    REQUIRE(command[at] == '$');
    const std::size_t line = command.find("\r\n", at);
    at = line + 2 + std::stoul(command.substr(at + 1)) + 2;
  }
  CHECK(parts == said);
}

TEST_CASE("tier call: decides from the numbers before, as the script did") {
  const auto login = definition_of({bucket_tier("a", {1, 1s}, 5), bucket_tier("b", {1, 1min}, 9)});
  TierCall call;
  call.add(Operation::take, *login, "k", 2, 1);
  call.add(Operation::take, *login, "l", 2, 2);
  check_is_whole(written(call, 10s));
  const std::int64_t unit = 1'000'000;
  // The first key is not known, the second has used 4 of tier a ten seconds ago, less a second, and 8 of b.
  const Reply reply =
      parsed(integers({1, 0, 0, 0, 0, 0, 0,  //
                       0, unit, 4 * unit, 9'000'000, 60 * unit, 8 * 60 * unit, 10'000'000, 0}));
  REQUIRE(call.fits(*reply));
  const auto answers = call.answers(*reply);
  CHECK(answers[0].decision.remaining == 3);
  CHECK(answers[0].decision.tier == 0);
  CHECK(answers[1].decision.verdict == Verdict::limited);
  CHECK(answers[1].decision.tier == 1);
  CHECK(answers[1].decision.retry_after == 60s);
  // What follows in a row of equal questions is decided from these.
  CHECK(answers[1].at == limiter::TimePoint{10s});
  CHECK(answers[1].states[0] == limiter::TierState{unit, 4 * unit, limiter::TimePoint{9s}});
  CHECK_FALSE(answers[0].states[0].exists());
}

TEST_CASE("tier call: a reply that contradicts itself, or is of a newer format, is a failure") {
  const auto login = definition_of({bucket_tier("a", {1, 1s}, 5)});
  for (const std::vector<std::int64_t>& numbers : std::initializer_list<std::vector<std::int64_t>>{
           {0, 0, 0, 0, 0},                           // refused what is full
           {1, 1'000'000, 5'000'000, 10'000'000, 0},  // passed what is empty
           {-(std::int64_t{1} << 53), 0, 0, 0, 0},    // a newer format
           {2, 0, 0, 0, 0},                           //
           {1, -1, 0, 0, 0},                          //
           {1, 0, limiter::kMaxUsed + 1, 0, 0}}) {
    TierCall call;
    call.add(Operation::take, *login, "k", 2, 1);
    static_cast<void>(written(call, 10s));
    CHECK(call.answers(*parsed(integers(numbers)))[0].status == Answer::Status::failed);
  }
}

TEST_CASE("tier call: a shadow tier's refusal passes") {
  const auto watched = definition_of({bucket_tier("a", {1, 1s}, 5), bucket_tier("b", {1, 1min}, 1, true)});
  TierCall call;
  call.add(Operation::take, *watched, "k", 2, 1);
  static_cast<void>(written(call, 10s));
  const Answer answer = call.answers(*parsed(integers({1, 0, 0, 0, 0, 0, 0, 0})))[0];
  CHECK(answer.status == Answer::Status::decided);
  CHECK(answer.decision.verdict == Verdict::shadow);
  CHECK(answer.decision.tier == 1);
}

TEST_CASE("tier call: many tiers fill a call sooner") {
  std::vector<limiter::Tier> tiers;
  for (int i = 0; i < 7; ++i) tiers.push_back(bucket_tier(std::to_string(i), {1, 1s}, 5));
  const auto login = definition_of(std::move(tiers));
  TierCall call;
  std::size_t count = 0;
  for (; !call.is_full(); ++count) call.add(Operation::take, *login, "k" + std::to_string(count), 1, count);
  CHECK(count == 16);
}

TEST_CASE("log call: waits are counted from now, or from the newest stamp if that is later") {
  const auto log = definition_of({{"", made(limiter::SlidingLog::make({3, 1min})), false}});
  LogCall call;
  for (int i = 0; i < 3; ++i) call.add(Operation::take, *log, "k", 2, 1);
  check_is_whole(written(call, 100s));
  const auto seconds = [](std::int64_t n) { return n * 1'000'000; };
  const auto answers = call.answers(*parsed(integers({1, 2, seconds(160), 0, seconds(160),             //
                                                      0, 2, seconds(150), seconds(140), seconds(130),  //
                                                      0, 2, seconds(170), seconds(170), seconds(170), 0})));
  CHECK(answers[0].decision.remaining == 1);
  CHECK(answers[0].decision.reset_after == 60s);
  CHECK(answers[1].decision.retry_after == 40s);
  CHECK(answers[1].decision.more_after == 30s);
  CHECK(answers[2].decision.retry_after == 60s);  // stamped at 110 s, before our clock stepped back
}

TEST_CASE("counter call: a transaction per question, in one") {
  const auto hits = counter(5, 1500ms);
  CounterCall call;
  call.add(Operation::take, *hits, "k", 2, 1);
  call.add(Operation::peek, *hits, "l", 1, 2);
  ByteBuffer out;
  CHECK(call.write_transaction(out, limiter::TimePoint{10s}) == 6);  // OK and five times QUEUED
  CHECK(out.view() ==
        "*1\r\n$5\r\nMULTI\r\n"
        "*3\r\n$6\r\nINCRBY\r\n$1\r\nk\r\n$1\r\n2\r\n"
        "*4\r\n$7\r\nPEXPIRE\r\n$1\r\nk\r\n$4\r\n1500\r\n$2\r\nNX\r\n"
        "*2\r\n$4\r\nPTTL\r\n$1\r\nk\r\n"
        "*2\r\n$3\r\nGET\r\n$1\r\nl\r\n*2\r\n$4\r\nPTTL\r\n$1\r\nl\r\n"
        "*1\r\n$4\r\nEXEC\r\n");
  const auto answers = call.transaction_answers(*parsed("*5\r\n:6\r\n:0\r\n:700\r\n$1\r\n4\r\n:900\r\n"));
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].at == limiter::TimePoint{10s});
  CHECK(answers[0].decision.verdict == Verdict::limited);
  CHECK(answers[0].decision.retry_after == 700ms);
  CHECK(answers[1].decision.verdict == Verdict::ok);
  CHECK(answers[1].decision.remaining == 1);
}

TEST_CASE("counter call: what is no count goes to the script, and what is no reply to nobody") {
  const auto hits = counter(5, 1500ms);
  CounterCall call;
  call.add(Operation::take, *hits, "k", 2, 1);
  for (const char* bytes : {"*3\r\n-ERR value is not an integer\r\n:0\r\n:-1\r\n", "*3\r\n:1\r\n:0\r\n:5\r\n",
                            "*3\r\n:2\r\n:0\r\n:-1\r\n"}) {
    CAPTURE(bytes);
    CHECK(call.transaction_answers(*parsed(bytes)).at(0).status == Answer::Status::promised);
  }
  for (const char* bytes : {"*2\r\n:2\r\n:0\r\n", "*4\r\n:2\r\n:0\r\n:5\r\n:5\r\n", ":2\r\n", "*-1\r\n"}) {
    CAPTURE(bytes);
    CHECK(call.transaction_answers(*parsed(bytes)).empty());
  }
  check_is_whole(written(call, 10s));
  CHECK(call.answers(*parsed(integers({5, 300, 0})))[0].decision.verdict == Verdict::ok);
  CHECK(call.answers(*parsed(integers({6, 300, 0})))[0].decision.retry_after == 300ms);
}

}  // namespace
}  // namespace allowd::store
