// SPDX-License-Identifier: MIT
//
// The client's side of the wire on any bytes: replies, decisions, and the values of `info` and `stats`.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "protocol/caps.h"
#include "protocol/client_message.h"
#include "protocol/value.h"
#include "tests/fuzz/expect.h"

namespace allowd::fuzz {
namespace {

constexpr std::size_t kCap = 4096;  // small, so that inputs reach beyond it

bool is_inside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}
bool is_inside(std::string_view part, std::span<const std::byte> whole) {
  return is_inside(std::as_bytes(std::span(part.data(), part.size())), whole);
}

void check_result(std::span<const std::byte> result) {
  protocol::Cursor as_decision(result);
  protocol::ReceivedDecision decision;
  if (protocol::read_decision(as_decision, decision)) {
    for (const std::string_view text : {decision.verdict, decision.source, decision.tier})
      expect(is_inside(text, result), "a decision's texts lie inside the reply");
  }
  protocol::Cursor as_value(result);
  protocol::Value value;
  if (!protocol::read_value(as_value, value)) return;
  expect(as_value.at_end(), "the result is one value");
  static_cast<void>(value.to_text());
  static_cast<void>(value.to_json());
  protocol::ByteBuffer again;
  value.encode(again);
  const std::string_view text = again.view();
  protocol::Cursor cursor(std::as_bytes(std::span(text.data(), text.size())));
  protocol::Value second;
  expect(protocol::read_value(cursor, second) && cursor.at_end(),
         "what was read can be written and read again");
}

}  // namespace
}  // namespace allowd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace allowd;
  std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(data), size);
  while (!rest.empty()) {
    const protocol::Reply reply = protocol::read_reply(rest, fuzz::kCap);
    if (reply.kind == protocol::Reply::Kind::incomplete)
      fuzz::expect(rest.size() < fuzz::kCap, "no more than the cap is waited for");
    if (reply.kind != protocol::Reply::Kind::reply) break;
    fuzz::expect(reply.size > 0 && reply.size <= rest.size() && reply.size <= fuzz::kCap,
                 "a reply makes progress within the bytes and the cap");
    const auto whole = rest.first(reply.size);
    fuzz::expect(fuzz::is_inside(reply.error, whole), "an error lies inside the reply");
    fuzz::expect(fuzz::is_inside(reply.result, whole), "a result lies inside the reply");
    fuzz::check_result(reply.result);
    rest = rest.subspan(reply.size);
  }
  return 0;
}
