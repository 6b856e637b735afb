// SPDX-License-Identifier: MIT
//
// Cursor::skip against msgpack-c's parser, on messages that are random, damaged, or both. The seeds are
// fixed: every run sees the same ones.
#include <string>

#include "protocol/cursor.h"
#include "tests/support/bytes.h"
#include "tests/support/msgpack_oracle.h"
#include "tests/support/printing.h"
#include "tests/support/random_message.h"

namespace allowd::protocol {
namespace {

using testing::OracleOpinion;
using testing::RandomMessages;

// True when both say the same of `bytes`.
bool agrees(const std::string& bytes, std::size_t depth) {
  const testing::ExactCopy copy(bytes);
  Cursor cursor(copy.span());
  const bool is_whole = cursor.skip(depth);
  const auto size = static_cast<std::size_t>(cursor.position() - copy.span().data());
  const OracleOpinion opinion = testing::ask_msgpack(bytes, depth);
  switch (opinion.kind) {
    case OracleOpinion::Kind::whole: return is_whole && size == opinion.size;
    case OracleOpinion::Kind::malformed:
    case OracleOpinion::Kind::too_deep: return !is_whole && cursor.failure() == Cursor::Failure::unexpected;
    case OracleOpinion::Kind::incomplete:
      // A container one level too deep whose header is cut off: we need not see the rest to refuse it.
      if (opinion.depth == depth && cursor.failure() == Cursor::Failure::unexpected) return !is_whole;
      return !is_whole && cursor.failure() == Cursor::Failure::starved;
  }
  return false;
}

void check_all(std::uint64_t seed, int rounds, std::string (*make)(RandomMessages&)) {
  RandomMessages random(seed);
  for (int round = 0; round < rounds; ++round) {
    const std::string bytes = make(random);
    for (const std::size_t depth : {std::size_t{2}, std::size_t{8}}) {
      if (agrees(bytes, depth)) continue;
      FAIL_CHECK("round " << round << ", depth " << depth << ": " << testing::to_hex(bytes));
    }
  }
}

TEST_CASE("cursor: skip and msgpack-c find the same end of well-formed values") {
  check_all(1, 20'000,
            [](RandomMessages& random) { return random.value(6) + random.noise(random.below(3)); });
}

TEST_CASE("cursor: skip and msgpack-c judge damaged values alike") {
  check_all(2, 40'000, [](RandomMessages& random) { return random.damaged(random.value(6)); });
}

TEST_CASE("cursor: skip and msgpack-c judge noise alike") {
  check_all(3, 40'000, [](RandomMessages& random) { return random.noise(random.below(24)); });
}

TEST_CASE("cursor: skip and msgpack-c judge every beginning of a value alike") {
  RandomMessages random(4);
  for (int round = 0; round < 300; ++round) {
    const std::string bytes = random.value(5);
    for (std::size_t size = 0; size <= bytes.size() && size < 400; ++size)
      if (!agrees(bytes.substr(0, size), 8)) FAIL_CHECK(testing::to_hex(bytes) << " cut to " << size);
  }
}

TEST_CASE("cursor: skip and msgpack-c judge every sequence of two bytes alike") {
  for (unsigned first = 0; first <= 0xff; ++first) {
    for (unsigned second = 0; second <= 0xff; ++second) {
      const std::string bytes = {static_cast<char>(first), static_cast<char>(second)};
      if (!agrees(bytes, 8)) FAIL_CHECK(testing::to_hex(bytes));
    }
  }
}

}  // namespace
}  // namespace allowd::protocol
