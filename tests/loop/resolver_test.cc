// SPDX-License-Identifier: MIT
#include "agent/loop/resolver.h"

#include <arpa/inet.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/busy_threads.h"
#include "tests/support/printing.h"
#include "tests/support/turns.h"

namespace allowd::loop {
namespace {

using testing::BusyThreads;
using testing::turn_on;
using testing::turn_until;

struct Answer {
  int status = 0;
  Resolver::Addresses addresses;
};

// Collects the answers that come.
struct Answers {
  std::vector<Answer> all;
  Resolver::Done collect() {
    return [this](int status, Resolver::Addresses addresses) {
      all.push_back({status, std::move(addresses)});
    };
  }
};

std::string shown(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  std::uint16_t port = 0;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    port = ntohs(v6.sin6_port);
  }
  return std::string(text) + "|" + std::to_string(port);
}

TEST_CASE("resolver: numeric addresses are answered at once") {
  Loop loop;
  Resolver resolver(loop);
  Answers answers;
  resolver.resolve("127.0.0.1", 6379, answers.collect());
  resolver.resolve("::1", 65535, answers.collect());
  resolver.resolve("2001:db8::5", 1, answers.collect());
  REQUIRE(answers.all.size() == 3);
  for (const Answer& answer : answers.all) {
    CHECK(answer.status == 0);
    REQUIRE(answer.addresses.size() == 1);
  }
  CHECK(shown(answers.all[0].addresses[0]) == "127.0.0.1|6379");
  CHECK(shown(answers.all[1].addresses[0]) == "::1|65535");
  CHECK(shown(answers.all[2].addresses[0]) == "2001:db8::5|1");
}

TEST_CASE("resolver: a name is looked up, and answered once") {
  Loop loop;
  Resolver resolver(loop);
  Answers answers;
  resolver.resolve("localhost", 6379, answers.collect());
  CHECK(answers.all.empty());
  turn_until(loop, [&] { return !answers.all.empty(); });
  turn_on(loop);
  REQUIRE(answers.all.size() == 1);
  CHECK(answers.all[0].status == 0);
  REQUIRE_FALSE(answers.all[0].addresses.empty());
  for (const auto& address : answers.all[0].addresses) {
    const std::string text = shown(address);
    const bool is_loopback = text == "127.0.0.1|6379" || text == "::1|6379";
    CHECK(is_loopback);
  }
}

TEST_CASE("resolver: a name that cannot be one is an error, told once") {
  Loop loop;
  Resolver resolver(loop);
  Answers answers;
  resolver.resolve(std::string(1000, 'x'), 6379, answers.collect());
  turn_until(loop, [&] { return !answers.all.empty(); });
  turn_on(loop);
  REQUIRE(answers.all.size() == 1);
  CHECK(answers.all[0].status < 0);
  CHECK(answers.all[0].addresses.empty());
  // The resolver can be used again.
  resolver.resolve("localhost", 6379, answers.collect());
  turn_until(loop, [&] { return answers.all.size() == 2; });
  CHECK(answers.all[1].status == 0);
}

TEST_CASE("resolver: asking again while a look-up is under way replaces who is told") {
  Loop loop;
  Resolver resolver(loop);
  Answers first, second;
  resolver.resolve("localhost", 6379, first.collect());
  resolver.resolve("localhost", 6379, second.collect());
  turn_until(loop, [&] { return !second.all.empty(); });
  turn_on(loop);
  CHECK(first.all.empty());
  CHECK(second.all.size() == 1);
  CHECK(second.all[0].status == 0);
}

TEST_CASE("resolver: an answer that is not wanted any more is not given") {
  Loop loop;
  Resolver resolver(loop);
  Answers answers;
  resolver.resolve("localhost", 6379, answers.collect());
  resolver.forget();
  resolver.forget();
  turn_on(loop, 20);
  CHECK(answers.all.empty());
}

TEST_CASE("resolver: may be destroyed while a look-up is under way") {
  Loop loop;
  Answers answers;
  {
    Resolver resolver(loop);
    resolver.resolve("localhost", 6379, answers.collect());
  }
  turn_until(loop, [&] { return loop.raw()->active_reqs.count == 0; });
  CHECK(answers.all.empty());
}

TEST_CASE("resolver: may be destroyed from inside its answer") {
  Loop loop;
  auto resolver = std::make_unique<Resolver>(loop);
  int calls = 0;
  resolver->resolve("localhost", 6379, [&](int, const Resolver::Addresses&) {
    resolver.reset();
    ++calls;
  });
  turn_until(loop, [&] { return calls > 0; });
  turn_on(loop);
  CHECK(calls == 1);
}

TEST_CASE(
    "resolver: one that forgot a queued look-up answers the next question, and not with its cancellation") {
  Loop loop;
  BusyThreads busy(loop);
  Resolver resolver(loop);
  Answers first, second;
  resolver.resolve("localhost", 6379, first.collect());
  resolver.forget();
  resolver.resolve("localhost", 6379, second.collect());
  busy.let_go();
  turn_until(loop, [&] { return !second.all.empty(); });
  turn_until(loop, [&] { return loop.raw()->active_reqs.count == 0; });
  CHECK(first.all.empty());
  REQUIRE(second.all.size() == 1);
  CHECK(second.all[0].status == 0);
}

}  // namespace
}  // namespace allowd::loop
