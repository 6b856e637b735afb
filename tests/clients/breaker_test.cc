// SPDX-License-Identifier: MIT
#include "clients/cpp/breaker.h"

#include <doctest/doctest.h>

using allowd::client::Breaker;
using namespace std::chrono_literals;

TEST_CASE("breaker: three timeouts in a row keep calls out for a second, then let one probe through") {
  Breaker breaker;
  Breaker::TimePoint now{};
  for (int i = 0; i < 3; ++i) {
    CHECK(breaker.lets_through(now));
    breaker.on_timeout(now);
  }
  CHECK_FALSE(breaker.lets_through(now + 999ms));
  CHECK(breaker.lets_through(now + 1s));
  CHECK_FALSE(breaker.lets_through(now + 1s));  // the probe is under way
  SUBCASE("a probe that times out keeps it open for another second") {
    breaker.on_timeout(now + 1s);
    CHECK_FALSE(breaker.lets_through(now + 1999ms));
    CHECK(breaker.lets_through(now + 2s));
  }
  SUBCASE("a probe that is answered closes it") {
    breaker.on_other_end();
    CHECK(breaker.lets_through(now + 1s));
    CHECK(breaker.lets_through(now + 1s));
  }
}

TEST_CASE("breaker: an answer in between starts the count anew") {
  Breaker breaker;
  const Breaker::TimePoint now{};
  breaker.on_timeout(now);
  breaker.on_timeout(now);
  breaker.on_other_end();
  breaker.on_timeout(now);
  breaker.on_timeout(now);
  CHECK(breaker.lets_through(now));
  breaker.on_timeout(now);
  CHECK_FALSE(breaker.lets_through(now));
}
