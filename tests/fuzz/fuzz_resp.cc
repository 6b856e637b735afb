// SPDX-License-Identifier: MIT
//
// The guarded reader of Redis's replies on any bytes in any pieces. The input's first byte says how many
// bytes follow that are sizes of pieces, used in turn; all the rest is what the server sends.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/store/redis/codec/counter_call.h"
#include "agent/store/redis/codec/resp.h"
#include "agent/store/redis/codec/script_call.h"
#include "agent/store/redis/topology/key_groups.h"
#include "agent/store/redis/topology/slot_map.h"
#include "tests/fuzz/expect.h"

namespace allowd::fuzz {
namespace {

using store::ReplyReader;
using store::ScriptCall;

void check_reply(const redisReply& reply, std::size_t depth) {
  if (reply.type != REDIS_REPLY_ARRAY) return;
  expect(depth < ReplyReader::kMaxDepth, "arrays nest within their cap");
  expect(reply.elements <= ReplyReader::kMaxElements, "arrays have elements within their cap");
  for (std::size_t i = 0; i < reply.elements; ++i) check_reply(*reply.element[i], depth + 1);
}

limiter::DefinitionPtr define(limiter::Algorithm rules, std::string name = "") {
  return *limiter::Definition::make({{std::move(name), std::move(rules), false}}, false);
}

// Calls of up to four questions about a limit of each shape.
const std::vector<std::unique_ptr<ScriptCall>>& calls() {
  static const std::vector<std::unique_ptr<ScriptCall>> all = [] {
    const limiter::Rate rate{7, limiter::Micros{1'000'000}};
    const std::vector<limiter::DefinitionPtr> definitions = {
        define(*limiter::TokenBucket::make(rate, 50)),
        define(*limiter::TokenBucket::make({999'983, std::chrono::hours(24)}, 999'983)),
        define(*limiter::FixedWindow::make(rate, limiter::FixedWindow::Align::clock)),
        define(*limiter::SlidingWindow::make(rate)),
        *limiter::Definition::make({{"a", *limiter::TokenBucket::make(rate, 50), false},
                                    {"b", *limiter::SlidingWindow::make({9, std::chrono::hours(1)}), true}},
                                   false),
        define(*limiter::SlidingLog::make(rate)),
        define(*limiter::Counter::make(rate))};
    std::vector<std::unique_ptr<ScriptCall>> made;
    for (const limiter::DefinitionPtr& definition : definitions) {
      for (std::uint64_t questions = 1; questions <= 4; ++questions) {
        made.push_back(ScriptCall::make(definition->shape()));
        for (std::uint64_t i = 0; i < questions; ++i)
          made.back()->add(limiter::Operation::take, *definition, "key", 3, i);
        store::ByteBuffer command;
        made.back()->write(command, "sha", limiter::TimePoint{std::chrono::hours(1)});
      }
    }
    return made;
  }();
  return all;
}

void check_decision(const store::Answer& answer, std::int64_t most) {
  if (answer.status != store::Answer::Status::decided) return;
  const limiter::Decision& decision = answer.decision;
  expect(decision.remaining >= 0 && decision.remaining <= most, "what remains is within the limit");
  expect(decision.reset_after.count() >= 0 && decision.more_after.count() >= 0 &&
             decision.retry_after.count() >= -1,
         "no wait is negative");
  expect((decision.retry_after.count() == 0) == (decision.verdict == limiter::Verdict::ok),
         "who is refused waits");
}

// The reply as an answer to CLUSTER SLOTS.
void check_map(const redisReply& reply) {
  auto map = store::SlotMap::read(reply, "asked");
  if (!map) return;
  for (std::uint32_t slot = 0; slot < store::kSlots; slot += 127) {
    const store::NodeAddress* address = map->find(static_cast<std::uint16_t>(slot));
    expect(address == nullptr || (!address->host.empty() && address->port != 0),
           "a node has a host and a port");
  }
}

// The reply as an answer of the script, whatever was asked.
void check_answers(const redisReply& reply) {
  for (const auto& call : calls()) {
    if (const auto* counters = dynamic_cast<const store::CounterCall*>(call.get())) {
      for (const store::Answer& answer : counters->transaction_answers(reply)) check_decision(answer, 7);
    }
    if (!call->fits(reply)) continue;
    static_cast<void>(ScriptCall::healed(reply));
    const auto answers = call->answers(reply);
    expect(answers.size() == call->items().size(), "every question has an answer");
    for (const store::Answer& answer : answers) check_decision(answer, 999'983);
  }
}

struct Reading {
  std::vector<std::string> replies;  // each as its type and text
  bool has_failed = false;
};

void read_all(ReplyReader& reader, Reading& reading) {
  while (!reading.has_failed) {
    auto reply = reader.read();
    if (!reply) {
      reading.has_failed = true;
      expect(!reader.read(), "a reader that has failed stays failed");
    } else if (*reply == nullptr) {
      return;
    } else {
      check_reply(**reply, 0);
      check_answers(**reply);
      check_map(**reply);
      reading.replies.push_back(std::to_string((*reply)->type) + std::string(store::text_of(*reply)));
    }
  }
}

Reading read_in_pieces(std::string_view bytes, const std::vector<std::size_t>& sizes) {
  ReplyReader reader;
  Reading reading;
  for (std::size_t piece = 0; !bytes.empty() && !reading.has_failed; ++piece) {
    const std::size_t size = std::min(bytes.size(), sizes[piece % sizes.size()]);
    if (reader.feed(bytes.substr(0, size))) reading.has_failed = true;
    bytes.remove_prefix(size);
    read_all(reader, reading);
  }
  return reading;
}

}  // namespace
}  // namespace allowd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace allowd::fuzz;
  if (size == 0) return 0;
  const std::size_t counted = std::min<std::size_t>(data[0] % 16, size - 1);
  std::vector<std::size_t> sizes;
  for (std::size_t i = 1; i <= counted; ++i) sizes.push_back(std::size_t{1} + data[i]);
  if (sizes.empty()) sizes.push_back(1);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1 + counted, size - 1 - counted);
  const Reading in_pieces = read_in_pieces(bytes, sizes);
  const Reading at_once = read_in_pieces(bytes, {std::max<std::size_t>(1, bytes.size())});
  expect(in_pieces.replies == at_once.replies, "the pieces do not change the replies");
  expect(in_pieces.has_failed == at_once.has_failed, "the pieces do not change whether reading fails");
  return 0;
}
