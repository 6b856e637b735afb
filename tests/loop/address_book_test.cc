// SPDX-License-Identifier: MIT
#include "agent/loop/address_book.h"

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/busy_threads.h"
#include "tests/support/printing.h"
#include "tests/support/turns.h"

namespace allowd::loop {
namespace {

using namespace std::chrono_literals;
using testing::BusyThreads;
using testing::turn_on;
using testing::turn_until;

struct Answers {
  std::vector<AddressBook::Found> all;
  AddressBook::Done collect() {
    return [this](AddressBook::Found found) { all.push_back(std::move(found)); };
  }
};

bool has_requests(Loop& loop) { return loop.raw()->active_reqs.count > 0; }

TEST_CASE("address book: a numeric address is answered at once and is no look-up") {
  Loop loop;
  AddressBook book(loop);
  Answers answers;
  book.find("127.0.0.1", 6379, answers.collect());
  REQUIRE(answers.all.size() == 1);
  CHECK(answers.all[0].status == 0);
  CHECK_FALSE(answers.all[0].is_remembered);
  CHECK(answers.all[0].addresses.size() == 1);
  CHECK_FALSE(has_requests(loop));
}

TEST_CASE("address book: a look-up that hangs is given up in time, and counted") {
  Loop loop;
  BusyThreads busy(loop);
  AddressBook book(loop, 20ms);
  Answers answers;
  const auto began = Loop::exact_now();
  book.find("localhost", 6379, answers.collect());
  turn_until(loop, [&] { return !answers.all.empty(); });
  CHECK(Loop::exact_now() - began >= 19ms);
  CHECK(answers.all[0].status == UV_ETIMEDOUT);
  CHECK(answers.all[0].addresses.empty());
  CHECK(book.failures() == 1);
  busy.let_go();
  turn_until(loop, [&] { return !has_requests(loop); });
  CHECK(answers.all.size() == 1);
}

TEST_CASE("address book: what a look-up brings late is remembered, and stands in for one that hangs") {
  Loop loop;
  AddressBook book(loop, 20ms);
  Answers answers;
  {
    BusyThreads busy(loop);
    book.find("localhost", 6379, answers.collect());
    turn_until(loop, [&] { return !answers.all.empty(); });
    busy.let_go();
    turn_until(loop, [&] { return !has_requests(loop); });
  }
  BusyThreads busy(loop);
  book.find("localhost", 6379, answers.collect());
  turn_until(loop, [&] { return answers.all.size() == 2; });
  CHECK(answers.all[1].status == 0);
  CHECK(answers.all[1].is_remembered);
  CHECK(answers.all[1].look_up_status == UV_ETIMEDOUT);
  CHECK_FALSE(answers.all[1].addresses.empty());
  // It hangs still: nobody waits for it a second time, and there is no second one.
  book.find("localhost", 6379, answers.collect());
  CHECK(answers.all.size() == 3);
  CHECK(answers.all[2].is_remembered);
  CHECK(loop.raw()->active_reqs.count == 4 + 1);  // the threads' work and one look-up
  busy.let_go();
  turn_until(loop, [&] { return !has_requests(loop); });
  book.find("localhost", 6379, answers.collect());
  turn_until(loop, [&] { return answers.all.size() == 4; });
  CHECK_FALSE(answers.all[3].is_remembered);
}

TEST_CASE(
    "address book: a look-up that fails is answered with what is remembered of another only if it is of that "
    "host") {
  Loop loop;
  AddressBook book(loop);
  Answers answers;
  book.find("localhost", 6379, answers.collect());
  turn_until(loop, [&] { return !answers.all.empty(); });
  book.find(std::string(1000, 'x'), 6379, answers.collect());
  turn_until(loop, [&] { return answers.all.size() == 2; });
  CHECK(answers.all[1].status < 0);
  CHECK_FALSE(answers.all[1].is_remembered);
  CHECK(book.failures() == 1);
}

TEST_CASE("address book: an answer that is not wanted any more is not given, and hinders no later one") {
  Loop loop;
  AddressBook book(loop);
  Answers first, second;
  book.find("localhost", 6379, first.collect());
  book.forget();
  book.find("localhost", 6380, second.collect());
  turn_until(loop, [&] { return !second.all.empty(); });
  turn_on(loop);
  CHECK(first.all.empty());
  CHECK(second.all.size() == 1);
}

TEST_CASE("address book: it remembers a bounded number of hosts") {
  Loop loop;
  AddressBook book(loop);
  Answers answers;
  for (int i = 0; i < 1000; ++i) book.find("127.0.0." + std::to_string(i % 250 + 1), 6379, answers.collect());
  CHECK(answers.all.size() == 1000);
}

TEST_CASE("address book: may be destroyed while a look-up hangs") {
  Loop loop;
  BusyThreads busy(loop);
  Answers answers;
  {
    AddressBook book(loop, 5ms);
    book.find("localhost", 6379, answers.collect());
  }
  busy.let_go();
  turn_until(loop, [&] { return !has_requests(loop); });
  CHECK(answers.all.empty());
}

}  // namespace
}  // namespace allowd::loop
