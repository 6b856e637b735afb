// SPDX-License-Identifier: MIT
#include "protocol/quoted.h"

#include <string>
#include <vector>

#include "tests/support/printing.h"
#include "tests/support/random_message.h"

namespace allowd::protocol {
namespace {

using Words = std::vector<std::string>;

TEST_CASE("quoted: printable ASCII stands as it is, everything else as an escape") {
  CHECK(quoted("") == R"("")");
  CHECK(quoted("user-1 ~") == R"("user-1 ~")");
  CHECK(quoted(R"(a"b\c)") == R"("a\"b\\c")");
  CHECK(quoted(std::string("\0\n\x1f\x7f\xff", 5)) == R"("\x00\x0a\x1f\x7f\xff")");
  CHECK(quoted("é") == R"("\xc3\xa9")");
}

TEST_CASE("quoted: words are split at runs of blanks and tabs") {
  CHECK(split_words("") == Words{});
  CHECK(split_words("  \t ") == Words{});
  CHECK(split_words("ping") == Words{"ping"});
  CHECK(split_words("\tkey  api \t user-1 ") == Words{"key", "api", "user-1"});
}

TEST_CASE("quoted: quotes hold blanks, empty words and escapes, also in the middle of a word") {
  CHECK(split_words(R"(key "my api" "")") == Words{"key", "my api", ""});
  CHECK(split_words(R"(a"b c"d)") == Words{"ab cd"});
  CHECK(split_words(R"("a""b")") == Words{"ab"});
  CHECK(split_words(R"("\"\\")") == Words{R"("\)"});
  CHECK(split_words(R"("\x00\xff\xAb")") == Words{std::string("\0\xff\xab", 3)});
  CHECK(split_words(R"("\x20")") == Words{" "});
}

TEST_CASE("quoted: a backslash outside quotes is a character like any other") {
  CHECK(split_words(R"(a\x00b \)") == Words{R"(a\x00b)", R"(\)"});
}

TEST_CASE("quoted: an open quote or a broken escape makes the line unreadable") {
  for (const char* line : {R"(")", R"(key "api)", R"("a\)", R"("\n")", R"("\x")", R"("\x0")", R"("\x0")",
                           R"("\xg0")", R"("\x-1")", R"("\x+1")", R"("\X00")", R"("\")"}) {
    CAPTURE(line);
    CHECK_FALSE(split_words(line).has_value());
  }
}

TEST_CASE("quoted: whatever the bytes are, reading what was quoted gives them back") {
  testing::RandomMessages random(5);
  for (int round = 0; round < 2000; ++round) {
    const std::string first = random.noise(random.below(20)), second = random.noise(random.below(20));
    const auto words = split_words(quoted(first) + " " + quoted(second));
    REQUIRE(words.has_value());
    CHECK(*words == Words{first, second});
  }
}

}  // namespace
}  // namespace allowd::protocol
