// SPDX-License-Identifier: MIT
//
// The agent's side of the wire on any bytes: sizes, views, caps, and agreement with msgpack-c about where a
// message ends.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/caps.h"
#include "protocol/cursor.h"
#include "protocol/request.h"
#include "tests/fuzz/expect.h"
#include "tests/support/msgpack_oracle.h"

namespace allowd::fuzz {
namespace {

using protocol::Message;
using testing::OracleOpinion;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_views(const protocol::Query& query, std::string_view whole) {
  const auto defined = query.defined_inline.value_or(protocol::InlineLimit{});
  // A message is used again: what its kind does not have may be left from before.
  const std::string_view limit = query.defined_inline ? std::string_view() : query.limit;
  const auto check_inside = [&](std::string_view view) {
    if (view.empty()) return;
    expect(view.data() >= whole.data() && view.data() + view.size() <= whole.data() + whole.size(),
           "a view lies inside the message");
  };
  for (const std::string_view view : {limit, query.key, query.plan, defined.name, defined.encoded})
    check_inside(view);
  expect(defined.tier_count >= 1 && defined.tier_count <= protocol::InlineLimit::kMaxTiers,
         "tiers are within their cap");
  for (std::size_t i = 0; i < defined.tier_count; ++i) {
    const protocol::InlineTier& tier = defined.tiers[i];
    for (const std::string_view view : {tier.name, tier.rate, tier.algorithm, tier.align}) check_inside(view);
    expect(!query.defined_inline || !tier.rate.empty(), "every tier has a rate");
  }
  expect(query.key.size() <= protocol::kMaxKeyBytes, "a key is within its cap");
  expect(limit.size() <= protocol::kMaxLimitNameBytes, "a limit's name is within its cap");
  expect(defined.name.size() <= protocol::kMaxLimitNameBytes, "an inline limit's name is within its cap");
  expect(query.cost >= 0, "a cost is not negative");
  expect(query.deadline_us.value_or(0) >= 0, "a deadline is not negative");
}

void check_message(const Message& message, std::span<const std::byte> bytes) {
  const OracleOpinion opinion = testing::ask_msgpack(text_of(bytes), protocol::kMaxDepth);
  const bool is_whole =
      opinion.kind == OracleOpinion::Kind::whole && opinion.size <= protocol::kMaxRequestBytes;
  switch (message.kind) {
    case Message::Kind::incomplete:
      expect(message.size == 0, "nothing is consumed of an incomplete message");
      expect(!is_whole, "a whole message is not waited for");
      expect(bytes.size() <= protocol::kMaxRequestBytes, "no more than 8 KiB are waited for");
      return;
    case Message::Kind::violation: return;
    case Message::Kind::notification:
      expect(is_whole && message.size == opinion.size, "a notification ends where msgpack-c sees it end");
      return;
    case Message::Kind::request: break;
  }
  if (message.ends_stream) {
    expect(message.request.refusal.has_value(), "what ends the stream is refused");
    expect(!is_whole, "a stream is not given up for a whole message");
    return;
  }
  expect(message.size > 0, "a request makes progress");
  expect(is_whole && message.size == opinion.size, "a request ends where msgpack-c sees it end");
  const protocol::Method method = message.request.method;
  if (message.request.refusal) {
    expect(!message.request.refusal->reason.empty(), "a refusal has a reason");
  } else if (method == protocol::Method::allow_many) {
    expect(message.request.items.size() <= protocol::kMaxItems, "items are within their cap");
    for (const protocol::Query& item : message.request.items)
      check_views(item, text_of(bytes).substr(0, message.size));
  } else if (method == protocol::Method::allow || method == protocol::Method::peek ||
             method == protocol::Method::refund) {
    check_views(message.request.query, text_of(bytes).substr(0, message.size));
  }
}

void check_cursor(std::span<const std::byte> bytes) {
  constexpr std::size_t kDepth = 8;
  protocol::Cursor cursor(bytes);
  const bool is_passed = cursor.skip(kDepth);
  const OracleOpinion opinion = testing::ask_msgpack(text_of(bytes), kDepth);
  expect(is_passed == (opinion.kind == OracleOpinion::Kind::whole), "skip passes over what msgpack-c parses");
  if (!is_passed) return;
  const auto size = static_cast<std::size_t>(cursor.position() - bytes.data());
  expect(size == opinion.size, "skip stops where msgpack-c does");
}

}  // namespace
}  // namespace allowd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace allowd;
  std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(data), size);
  fuzz::check_cursor(rest);
  // As a session reads: one message off the front after the other, into the same Message.
  protocol::Message message;
  while (!rest.empty()) {
    protocol::read_message(rest, message);
    fuzz::expect(message.size <= rest.size(), "a message is not longer than the bytes");
    fuzz::check_message(message, rest);
    const bool goes_on = (message.kind == protocol::Message::Kind::request && !message.ends_stream) ||
                         message.kind == protocol::Message::Kind::notification;
    if (!goes_on) break;
    rest = rest.subspan(message.size);
  }
  return 0;
}
