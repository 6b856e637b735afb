// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/bucket_call.h"
#include "agent/store/redis/codec/script.h"

#include <chrono>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/store/redis/codec/replies.h"
#include "tests/store/store_contract.h"
#include "tests/support/printing.h"

namespace allowd::store {
namespace {

using namespace std::chrono_literals;
using limiter::Operation;
using limiter::Verdict;
using testing::integers;
using testing::make_bucket;
using testing::parsed;
using testing::shard_time;

std::string redis_key(std::string_view tag, std::string_view key, std::string_view prefix = "allowd") {
  std::string out;
  append_redis_key(out, prefix, tag, key);
  return out;
}

TEST_CASE("bucket call: a Redis key shows prefix, slot, limit and key") {
  const std::string key = redis_key("n3:api:", "user-1");
  REQUIRE(key.size() == std::string("allowd:{5f1c}:n3:api:user-1").size());
  CHECK(key.starts_with("allowd:{"));
  CHECK(key.ends_with("}:n3:api:user-1"));
  CHECK(key.substr(8, 4).find_first_not_of("0123456789abcdef") == std::string::npos);
}

TEST_CASE("bucket call: the slot of a key never changes, since every agent must find it") {
  // A change here loses every counter in Redis when agents are updated.
  CHECK(redis_key("n3:api:", "user-1") == "allowd:{755f}:n3:api:user-1");
  CHECK(redis_key("n0::", "") == "allowd:{3728}:n0::");
  CHECK(redis_key("i8:checkout:", std::string_view("\0\xff", 2)) ==
        std::string("allowd:{4515}:i8:checkout:") + std::string("\0\xff", 2));
}

TEST_CASE("bucket call: no two pairs of limit and key share a Redis key") {
  const std::vector<std::string> names = {
      "", "a", "a:", ":a", "a:b", "1", "1:a", "{a}", "}", std::string("\0", 1), "a}:{b"};
  const std::vector<std::string> keys = {"",
                                         "a",
                                         ":",
                                         "a:b",
                                         "b",
                                         "n1:a:b",
                                         "1:a:",
                                         "}:n1:a:",
                                         "{x}",
                                         "}{",
                                         "{}",
                                         std::string("\0", 1),
                                         std::string("a\0", 2),
                                         std::string(1024, 'k')};
  std::set<std::string> seen;
  for (const char kind : {'n', 'i'}) {
    for (const std::string& name : names) {
      for (const std::string& key : keys) {
        const std::string redis = redis_key(make_limit_tag(kind, name, ""), key);
        CAPTURE(redis);
        CHECK(seen.insert(redis).second);
      }
    }
  }
}

TEST_CASE("bucket call: a user's braces do not choose the slot") {
  for (const char* key : {"{slot}", "}{slot}", "{", "}", "{}"}) {
    const std::string redis = redis_key("n3:api:", key);
    const std::size_t open = redis.find('{'), close = redis.find('}');
    CHECK(open == 7);
    CHECK(close == 12);
  }
}

TEST_CASE("bucket call: keys are spread over many slots") {
  std::set<std::string> slots;
  for (int i = 0; i < 2000; ++i) slots.insert(redis_key("n3:api:", "user-" + std::to_string(i)).substr(8, 4));
  CHECK(slots.size() > 1900);
}

std::string written(BucketCall& call, std::string_view sha, limiter::Micros now) {
  ByteBuffer out;
  call.write(out, sha, shard_time(now));
  return std::string(out.view());
}

// A command as bytes, from its parts.
std::string command(const std::vector<std::string>& parts) {
  std::string bytes = "*" + std::to_string(parts.size()) + "\r\n";
  for (const std::string& part : parts) bytes += "$" + std::to_string(part.size()) + "\r\n" + part + "\r\n";
  return bytes;
}

TEST_CASE("bucket call: one question is one call") {
  const auto bucket = make_bucket(10, 1s, 20);
  BucketCall call;
  call.add(Operation::take, *bucket, "allowd:{0000}:n3:api:k", 3, 42);
  CHECK(written(call, "c0ffee", 1'700'000'000s) ==
        command({"EVALSHA", "c0ffee", "1", "allowd:{0000}:n3:api:k", "b", "1700000000000000", "0",
                 "1",                              // kind, now, a repeated key, limits
                 "100000", "1", "2000000", "1",    // unit, refill, full, tick
                 "1", "t", "300000", "1", "1"}));  // limit, operation, units, times, questions
  REQUIRE(call.items().size() == 1);
  const BucketCall::Item& item = call.items()[0];
  CHECK(item.ticket == 42);
  CHECK(item.cost == 3);
  CHECK(call.redis_key(item) == "allowd:{0000}:n3:api:k");
  CHECK(&call.definition(item) == bucket.get());
  CHECK_FALSE(item.was_repeated);
}

TEST_CASE("bucket call: neighbours that ask the same share a run, and limits are sent once") {
  const auto api = make_bucket(10, 1s, 20), login = make_bucket(1, 1min, 5);
  BucketCall call;
  call.add(Operation::take, *api, "a", 1, 1);
  call.add(Operation::take, *api, "b", 1, 2);
  call.add(Operation::take, *api, "c", 2, 3);
  call.add(Operation::peek, *api, "d", 2, 4);
  call.add(Operation::refund, *login, "e", 1, 5);
  call.add(Operation::force, *login, "f", 1, 6);
  call.add(Operation::take, *api, "g", 1, 7, 5);
  CHECK(written(call, "sha", 5us) ==
        command({"EVALSHA", "sha",    "7",        "a",       "b", "c",        "d", "e",         "f", "g",
                 "b",       "5",      "0",                                                            //
                 "2",       "100000", "1",        "2000000", "1", "60000000", "1", "300000000", "1",  //
                 "1",       "t",      "100000",   "1",       "2", "1",        "t", "200000",    "1", "1",
                 "1",       "p",      "200000",   "1",       "1", "2",        "r", "60000000",  "1", "1",
                 "2",       "f",      "60000000", "1",       "1", "1",        "t", "100000",    "5", "1"}));
}

TEST_CASE("bucket call: an item of another call keeps all that is known of it") {
  const auto api = make_bucket(10, 1s, 20), login = make_bucket(1, 1min, 5);
  BucketCall first;
  first.add(Operation::take, *api, "allowd:{0000}:n3:api:k", 1, 1);
  first.add(Operation::peek, *login, "allowd:{0000}:n5:login:l", 3, 42, 5);
  ScriptCall::Item item = first.items()[1];
  item.was_repeated = true;
  item.redirections = 2;
  BucketCall second;
  second.add_again(first, item);
  const ScriptCall::Item& again = second.items().front();
  CHECK(second.redis_key(again) == "allowd:{0000}:n5:login:l");
  CHECK(&second.definition(again) == login.get());
  CHECK(again.operation == Operation::peek);
  CHECK(again.cost == 3);
  CHECK(again.ticket == 42);
  CHECK(again.times == 5);
  CHECK(again.was_repeated);
  CHECK(again.redirections == 2);
}

TEST_CASE("bucket call: a key that stands twice is announced") {
  const auto bucket = make_bucket(10, 1s, 20);
  BucketCall call;
  call.add(Operation::take, *bucket, "a", 1, 1);
  call.add(Operation::take, *bucket, "b", 1, 2);
  const std::string apart = written(call, "sha", 5us);
  CHECK(apart.find("$1\r\n5\r\n$1\r\n0\r\n") != std::string::npos);
  call.add(Operation::take, *bucket, "a", 1, 3);
  const std::string twice = written(call, "sha", 5us);
  CHECK(twice.find("$1\r\n5\r\n$1\r\n1\r\n") != std::string::npos);
}

TEST_CASE("bucket call: keys may be any bytes, also none") {
  const auto bucket = make_bucket(10, 1s, 20);
  BucketCall call;
  const std::string binary("\r\n\0$", 4);
  call.add(Operation::take, *bucket, binary, 1, 1);
  call.add(Operation::take, *bucket, "", 1, 2);
  CHECK(call.redis_key(call.items()[0]) == binary);
  CHECK(call.redis_key(call.items()[1]).empty());
  CHECK(written(call, "sha", 5us) == command({"EVALSHA", "sha", "2", binary, "", "b", "5", "0", "1", "100000",
                                              "1", "2000000", "1", "1", "t", "100000", "1", "2"}));
}

TEST_CASE("bucket call: costs without bound stay within what doubles hold") {
  const auto bucket = make_bucket(1, 24h, 10);
  BucketCall call;
  call.add(Operation::force, *bucket, "k", std::numeric_limits<std::int64_t>::max(), 1);
  call.add(Operation::refund, *bucket, "k", limiter::kMaxUsed, 2);
  const std::string bytes = written(call, "sha", 5us);
  CHECK(bytes.find("9223372036854775807") == std::string::npos);
  CHECK(bytes.find("$16\r\n4503599627370496\r\n") != std::string::npos);
}

TEST_CASE("bucket call: a call is full at 128 questions") {
  const auto bucket = make_bucket(10, 1s, 20);
  BucketCall call;
  for (std::size_t i = 0; i < BucketCall::kMaxWeight; ++i) {
    CHECK_FALSE(call.is_full());
    call.add(Operation::take, *bucket, "key " + std::to_string(i), 1, i);
  }
  CHECK(call.is_full());
  for (std::size_t i = 0; i < BucketCall::kMaxWeight; ++i)
    CHECK(call.redis_key(call.items()[i]) == "key " + std::to_string(i));
}

TEST_CASE("bucket call: a reply fits when it has a number for each question and one more") {
  const auto bucket = make_bucket(10, 1s, 20);
  BucketCall none, one, two;
  one.add(Operation::take, *bucket, "a", 1, 1);
  two.add(Operation::take, *bucket, "a", 1, 1);
  two.add(Operation::take, *bucket, "b", 1, 2);
  CHECK(two.fits(*parsed(integers({5, -1, 0}))));
  CHECK(none.fits(*parsed(integers({0}))));
  CHECK_FALSE(one.fits(*parsed(integers({5, -1, 0}))));
  CHECK_FALSE(two.fits(*parsed(integers({5, -1, 0, 0}))));
  for (const char* bytes : {"*0\r\n", ":5\r\n", "$-1\r\n", "+OK\r\n", "-ERR no\r\n"})
    CHECK_FALSE(none.fits(*parsed(bytes)));
  for (const char* bytes : {"*2\r\n:1\r\n$1\r\n5\r\n", "*2\r\n:1\r\n$-1\r\n", "*2\r\n*0\r\n:1\r\n"})
    CHECK_FALSE(one.fits(*parsed(bytes)));
}

TEST_CASE("bucket call: answers are the limiter's numbers for the use that came back") {
  const auto bucket = make_bucket(10, 1s, 10);
  BucketCall call;
  call.add(Operation::force, *bucket, "d", 4, 4);
  call.add(Operation::take, *bucket, "a", 4, 1);
  call.add(Operation::take, *bucket, "b", 4, 2);
  call.add(Operation::take, *bucket, "c", 4, 3);
  const Reply reply = parsed(integers({100'000, 400'000, -1 - 900'000, 0, 7}));
  static_cast<void>(written(call, "sha", 10s));
  CHECK(call.answers(*reply)[0].decision == bucket->bucket().describe(500'000, 4, Verdict::ok));
  const SharedAnswer passed = call.answers(*reply)[1];
  CHECK(passed.status == Answer::Status::decided);
  CHECK_FALSE(passed.by_overflow);
  CHECK(passed.decision == bucket->bucket().describe(800'000, 4, Verdict::ok));
  CHECK(passed.at == shard_time(10s));
  CHECK(passed.states[0] == limiter::TierState{bucket->bucket().unit(), 400'000, shard_time(10s)});
  const Answer refused = call.answers(*reply)[2];
  CHECK(refused.status == Answer::Status::decided);
  CHECK(refused.decision == bucket->bucket().describe(900'000, 4, Verdict::limited));
  CHECK(refused.decision.retry_after == 300ms);
  CHECK(call.answers(*reply)[3].decision == bucket->bucket().describe(400'000, 4, Verdict::ok));
  CHECK(BucketCall::healed(*reply) == 7);
}

TEST_CASE("bucket call: numbers that no script of ours sends are failures, not decisions") {
  const auto bucket = make_bucket(10, 1s, 10);
  BucketCall call;
  call.add(Operation::take, *bucket, "a", 4, 1);
  for (const std::int64_t number :
       {-(std::int64_t{1} << 53), limiter::kMaxUsed + 1, -2 - limiter::kMaxUsed,
        std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    CAPTURE(number);
    CHECK(call.answers(*parsed(integers({number, 0})))[0].status == Answer::Status::failed);
  }
  CHECK(call.answers(*parsed(integers({0, 0})))[0].status == Answer::Status::decided);
  CHECK(call.answers(*parsed(integers({-1 - limiter::kMaxUsed, 0})))[0].status == Answer::Status::decided);
  CHECK(BucketCall::healed(*parsed(integers({0, -5}))) == 0);
}

TEST_CASE("bucket call: a refusal of what would fit is a failure, and so is a grant of what would not") {
  const auto bucket = make_bucket(10, 1s, 10);
  BucketCall call;
  call.add(Operation::take, *bucket, "a", 4, 1);
  // Six permits are missing at most when four more fit.
  for (const std::int64_t used : {0, 1, 100'000, 600'000}) {
    CAPTURE(used);
    CHECK(call.answers(*parsed(integers({-1 - used, 0})))[0].status == Answer::Status::failed);
  }
  CHECK(call.answers(*parsed(integers({-1 - 600'001, 0})))[0].decision.retry_after == 1us);
  CHECK(call.answers(*parsed(integers({600'000, 0})))[0].status == Answer::Status::decided);
  CHECK(call.answers(*parsed(integers({600'001, 0})))[0].status == Answer::Status::failed);
}

TEST_CASE("bucket call: of what is asked together all are charged, or those that pass answer as a peek") {
  const auto bucket = make_bucket(10, 1s, 10);
  BucketCall call;
  call.decide_together();
  call.add(Operation::take, *bucket, "a", 4, 1);
  call.add(Operation::take, *bucket, "b", 4, 2);
  const auto passed = call.answers(*parsed(integers({0, 0, 0})));
  CHECK(passed[0].decision.remaining == 6);
  CHECK(passed[0].has_charged);
  const auto refused = call.answers(*parsed(integers({0, -1 - 900'000, 0})));
  CHECK(refused[0].decision.remaining == 10);
  CHECK(refused[0].decision.verdict == Verdict::ok);
  CHECK_FALSE(refused[0].has_charged);
}

TEST_CASE("bucket call: the script prints no number by concatenation or tostring") {
  const std::string_view script = decision_script();
  CHECK_FALSE(script.empty());
  CHECK(script.front() != '\n');
  CHECK(script.find("tostring") == std::string_view::npos);
  // `..` may only stand in words and comments; none does.
  CHECK(script.find("..") == std::string_view::npos);
}

TEST_CASE("script call: a server that tells its time is taken at its word") {
  const auto definition = make_bucket(10, 1s, 10);
  BucketCall call;
  call.add(Operation::take, *definition, "allowd:{0000}:n3:api:k", 1, 7);
  ByteBuffer out;
  call.write(out, "sha", limiter::TimePoint{1s}, true);
  CHECK(out.view().find("$1\r\nb\r\n$1\r\n?\r\n") != std::string_view::npos);
  CHECK_FALSE(call.fits(*parsed(integers({0, 0}))));
  CHECK_FALSE(call.fits(*parsed(integers({0, -1, 0}))));
  CHECK_FALSE(call.fits(*parsed(integers({0, std::int64_t{1} << 54, 0}))));
  const auto reply = parsed(integers({0, 5'000'000, 0}));
  REQUIRE(call.fits(*reply));
  call.take_time(*reply);
  const auto answers = call.answers(*reply);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].status == Answer::Status::decided);
  CHECK(answers[0].at == limiter::TimePoint{5s});
}

}  // namespace
}  // namespace allowd::store
