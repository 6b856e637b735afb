// SPDX-License-Identifier: MIT
#include "protocol/reply.h"

#include <limits>
#include <msgpack.hpp>
#include <string>
#include <vector>

#include "protocol/caps.h"
#include "protocol/client_message.h"
#include "tests/support/bytes.h"
#include "tests/support/encode.h"
#include "tests/support/printing.h"
#include "tests/support/random_message.h"

namespace allowd::protocol {
namespace {

namespace encode = testing::encode;
using encode::array;
using encode::integer;
using encode::negative;
using encode::nil;
using encode::str;

template <class Write>
std::string written(Write write) {
  ByteBuffer out;
  write(out);
  return std::string(out.view());
}

std::string decision_bytes(std::uint64_t msgid, const Decision& decision) {
  return written([&](ByteBuffer& out) { write_decision(out, msgid, decision); });
}

const Decision kPassed{.allowed = true,
                       .limit = 200,
                       .remaining = 199,
                       .retry_after_us = 0,
                       .reset_after_us = 10'000,
                       .verdict = Verdict::ok,
                       .source = Source::store,
                       .tier = "",
                       .window_us = 2'000'000,
                       .more_after_us = 10'000};

TEST_CASE("reply: a decision is an array of ten in minimal encodings") {
  CHECK(testing::to_hex(decision_bytes(7, kPassed)) ==
        testing::to_hex(testing::from_hex("94 01 07 c0 9a c3 ccc8 ccc7 00 cd2710 a26f6b a573746f7265 a0 "
                                          "ce001e8480 cd2710")));
}

TEST_CASE("reply: each field of a decision takes the shortest encoding of its value") {
  const std::vector<std::uint64_t> numbers = {
      0,     127,   128,        255,         256,
      65535, 65536, 0xffffffff, 0x100000000, std::numeric_limits<std::uint64_t>::max()};
  for (const std::uint64_t number : numbers) {
    CAPTURE(number);
    const Decision decision{.limit = number,
                            .remaining = number,
                            .retry_after_us = kNever,
                            .reset_after_us = number,
                            .verdict = Verdict::never,
                            .source = Source::local,
                            .tier = "day",
                            .window_us = number,
                            .more_after_us = number};
    const std::string expected = array(4) + integer(1) + integer(number) + nil() + array(10) +
                                 encode::boolean(false) + integer(number) + integer(number) + negative(-1) +
                                 integer(number) + str("never") + str("local") + str("day") +
                                 integer(number) + integer(number);
    CHECK(testing::to_hex(decision_bytes(number, decision)) == testing::to_hex(expected));
  }
}

TEST_CASE("reply: a wait of any length is written, also the longest") {
  for (const std::int64_t wait : {std::int64_t{0}, std::int64_t{1}, std::int64_t{86'400'000'000},
                                  std::numeric_limits<std::int64_t>::max()}) {
    Decision decision = kPassed;
    decision.retry_after_us = wait;
    const std::string bytes = decision_bytes(1, decision);
    const auto object = msgpack::unpack(bytes.data(), bytes.size());
    CHECK(object->via.array.ptr[3].via.array.ptr[3].as<std::int64_t>() == wait);
  }
}

TEST_CASE("reply: msgpack-c reads back what was written") {
  const std::string bytes = decision_bytes(0xfffffffe, kPassed);
  const auto object = msgpack::unpack(bytes.data(), bytes.size());
  REQUIRE(object->type == msgpack::type::ARRAY);
  REQUIRE(object->via.array.size == 4);
  const msgpack::object* fields = object->via.array.ptr;
  CHECK(fields[0].as<int>() == 1);
  CHECK(fields[1].as<std::uint64_t>() == 0xfffffffe);
  CHECK(fields[2].is_nil());
  REQUIRE(fields[3].type == msgpack::type::ARRAY);
  REQUIRE(fields[3].via.array.size == 10);
  const msgpack::object* decision = fields[3].via.array.ptr;
  CHECK(decision[0].as<bool>());
  CHECK(decision[1].as<std::uint64_t>() == 200);
  CHECK(decision[2].as<std::uint64_t>() == 199);
  CHECK(decision[3].as<std::int64_t>() == 0);
  CHECK(decision[4].as<std::uint64_t>() == 10'000);
  CHECK(decision[5].as<std::string>() == "ok");
  CHECK(decision[6].as<std::string>() == "store");
  CHECK(decision[7].as<std::string>().empty());
  CHECK(decision[8].as<std::uint64_t>() == 2'000'000);
  CHECK(decision[9].as<std::uint64_t>() == 10'000);
}

// The same decision by msgpack-c's packer.
std::string packed(std::uint64_t msgid, const Decision& decision) {
  msgpack::sbuffer out;
  msgpack::packer<msgpack::sbuffer> packer(out);
  packer.pack_array(4).pack(1).pack(msgid).pack_nil();
  packer.pack_array(10).pack(decision.allowed).pack(decision.limit).pack(decision.remaining);
  packer.pack(decision.retry_after_us).pack(decision.reset_after_us);
  packer.pack(std::string(name_of(decision.verdict))).pack(std::string(name_of(decision.source)));
  packer.pack(std::string(decision.tier)).pack(decision.window_us).pack(decision.more_after_us);
  return {out.data(), out.size()};
}

TEST_CASE("reply: random decisions are written as msgpack-c's packer writes them") {
  testing::RandomMessages random(31);
  const auto number = [&] {
    return random.below(std::numeric_limits<std::uint64_t>::max()) >> random.below(64);
  };
  ByteBuffer out;
  std::string expected;
  for (int round = 0; round < 20'000; ++round) {
    const std::string tier = random.noise(random.below(3) == 0 ? random.below(kMaxLimitNameBytes + 1) : 0);
    const Decision decision{
        .allowed = random.below(2) == 1,
        .limit = number(),
        .remaining = number(),
        .retry_after_us = random.below(4) == 0 ? kNever : static_cast<std::int64_t>(number() >> 1),
        .reset_after_us = number(),
        .verdict = static_cast<Verdict>(random.below(kVerdicts)),
        .source = static_cast<Source>(random.below(kSources)),
        .tier = tier,
        .window_us = number(),
        .more_after_us = number()};
    const std::uint64_t msgid = number();
    // Without clearing, so that replies also meet the end of the buffer at every distance.
    write_decision(out, msgid, decision);
    expected += packed(msgid, decision);
    if (round % 64 != 63) continue;
    if (out.view() != expected) FAIL("rounds up to " << round << " differ");
    out.clear(0);
    expected.clear();
  }
}

TEST_CASE("reply: the largest decision is written whole at any place of the buffer") {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const std::string tier(kMaxLimitNameBytes, 't');
  const Decision decision{.limit = kMost,
                          .remaining = kMost,
                          .retry_after_us = std::numeric_limits<std::int64_t>::max(),
                          .reset_after_us = kMost,
                          .verdict = Verdict::unavailable,
                          .source = Source::fallback,
                          .tier = tier,
                          .window_us = kMost,
                          .more_after_us = kMost};
  const std::string expected = packed(kMost, decision);
  for (std::size_t before = 0; before <= 512; ++before) {
    ByteBuffer out;
    out.append(std::string(before, 'x'));
    write_decision(out, kMost, decision);
    REQUIRE(out.view().substr(before) == expected);
  }
}

TEST_CASE("reply: verdicts and sources have the names of the protocol") {
  CHECK(name_of(Verdict::ok) == "ok");
  CHECK(name_of(Verdict::limited) == "limited");
  CHECK(name_of(Verdict::never) == "never");
  CHECK(name_of(Verdict::shadow) == "shadow");
  CHECK(name_of(Verdict::unavailable) == "unavailable");
  CHECK(name_of(Source::local) == "local");
  CHECK(name_of(Source::store) == "store");
  CHECK(name_of(Source::fallback) == "fallback");
}

TEST_CASE("reply: an error carries code and text in one string and no result") {
  for (int i = 0; i < 8; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const std::string reason(static_cast<std::size_t>(40 * i), 'r');
    const std::string bytes = written([&](ByteBuffer& out) { write_error(out, 9, code, reason); });
    const std::string text = std::string(name_of(code)) + ": " + reason;
    CHECK(testing::to_hex(bytes) == testing::to_hex(array(4) + integer(1) + integer(9) + str(text) + nil()));
  }
}

TEST_CASE("reply: a ping is answered with pong") {
  const std::string bytes = written([](ByteBuffer& out) { write_pong(out, 300); });
  CHECK(testing::to_hex(bytes) == "9401cd012cc0a4706f6e67");
}

TEST_CASE("reply: replies are appended, never overwritten") {
  const std::string bytes = written([](ByteBuffer& out) {
    write_pong(out, 1);
    write_error(out, 2, ErrorCode::internal, "x");
    write_pong(out, 3);
  });
  std::span<const std::byte> rest = testing::as_bytes(bytes);
  std::vector<std::uint64_t> ids;
  while (!rest.empty()) {
    const Reply reply = read_reply(rest, kMaxReplyBytes);
    REQUIRE(reply.kind == Reply::Kind::reply);
    ids.push_back(reply.msgid);
    rest = rest.subspan(reply.size);
  }
  CHECK(ids == std::vector<std::uint64_t>{1, 2, 3});
}

TEST_CASE("reply: a report carries its value as the result") {
  const Value report = Value::Map{{"version", "1"}, {"limits", Value::Map{}}};
  const std::string bytes = written([&](ByteBuffer& out) { write_report(out, 5, report); });
  CHECK(testing::to_hex(bytes) ==
        testing::to_hex(array(4) + integer(1) + integer(5) + nil() + encode::map(2) + str("version") +
                        str("1") + str("limits") + encode::map(0)));
}

TEST_CASE("reply: a report over a megabyte becomes an internal error, and the whole reply never passes it") {
  const auto report_of = [](std::size_t size) {
    return written([&](ByteBuffer& out) { write_report(out, 0xffffffff, Value(std::string(size, 'x'))); });
  };
  const std::string small = report_of(kMaxReportBytes - 100);
  CHECK(small.size() <= kMaxReportBytes);
  CHECK(read_reply(testing::as_bytes(small), kMaxReportBytes).error.empty());
  for (std::size_t size = kMaxReportBytes - 40; size < kMaxReportBytes + 2; ++size)
    CHECK(report_of(size).size() <= kMaxReportBytes);
  const std::string large = report_of(kMaxReportBytes);
  const Reply reply = read_reply(testing::as_bytes(large), kMaxReportBytes);
  CHECK(reply.kind == Reply::Kind::reply);
  CHECK(reply.error.starts_with("internal: "));
}

}  // namespace
}  // namespace allowd::protocol
