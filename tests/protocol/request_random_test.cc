// SPDX-License-Identifier: MIT
//
// What must hold of read_message whatever the bytes are, on many damaged requests; and that reading allocates
// nothing.
#include <memory>
#include <string>
#include <vector>

#include "protocol/caps.h"
#include "protocol/request.h"
#include "tests/support/allocations.h"
#include "tests/support/bytes.h"
#include "tests/support/encode.h"
#include "tests/support/msgpack_oracle.h"
#include "tests/support/printing.h"
#include "tests/support/random_message.h"

namespace allowd::protocol {
namespace {

namespace encode = testing::encode;
using testing::OracleOpinion;
using testing::RandomMessages;

std::vector<std::string> samples() {
  const std::string table = encode::map(3) + encode::str("name") + encode::str("checkout") +
                            encode::str("rate") + encode::str("100/s") + encode::str("burst") +
                            encode::u16(200);
  const std::string deadline = encode::map(1) + encode::str("deadline_us") + encode::u16(45000);
  return {
      encode::allow(2, encode::str("api") + encode::str("user-1")),
      encode::allow(4, encode::str("api") + encode::bin8("user-1") + encode::u32(2) + deadline),
      encode::allow(4, table + encode::str16("user-1") + encode::integer(1) + encode::nil()),
      encode::request(encode::u32(0xfffffffe), "peek",
                      encode::array(3) + encode::str("api") + encode::str("k") + encode::negative(-3)),
      encode::request(encode::integer(1), "ping", encode::array(0)),
      encode::request(encode::integer(1), "nothing",
                      encode::array(1) + encode::map(1) + encode::nil() + encode::nil()),
      encode::array(3) + encode::integer(2) + encode::str("event") + encode::array(0),
  };
}

bool is_inside(std::string_view view, std::span<const std::byte> bytes) {
  if (view.empty()) return true;
  const auto whole = testing::as_text(bytes);
  return view.data() >= whole.data() && view.data() + view.size() <= whole.data() + whole.size();
}

// Empty when all is well, else what does not hold.
std::string broken_promise(const std::string& bytes) {
  const testing::ExactCopy copy(bytes);
  const Message message = read_message(copy.span());
  if (message.size > bytes.size() || message.size > kMaxRequestBytes)
    return "a size beyond the bytes or the cap";
  const OracleOpinion opinion = testing::ask_msgpack(bytes, kMaxDepth);
  const bool is_whole = opinion.kind == OracleOpinion::Kind::whole && opinion.size <= kMaxRequestBytes;
  switch (message.kind) {
    case Message::Kind::incomplete:
      if (message.size != 0) return "incomplete, yet consumed";
      return is_whole ? "waits for more of a message that is whole" : "";
    case Message::Kind::violation: return "";
    case Message::Kind::notification:
      return is_whole && message.size == opinion.size ? "" : "a notification that ends elsewhere";
    case Message::Kind::request: break;
  }
  const Request& request = message.request;
  if (message.ends_stream) {
    if (!request.refusal) return "ends the stream without saying why";
    return is_whole ? "gives up a stream whose message is whole" : "";
  }
  if (!is_whole || message.size != opinion.size) return "a request that ends elsewhere";
  if (request.refusal) return request.refusal->reason.empty() ? "a refusal without a reason" : "";
  const Query& query = request.query;
  if (query.cost < 0 || query.deadline_us.value_or(0) < 0) return "a negative number passed";
  if (query.key.size() > kMaxKeyBytes || query.limit.size() > kMaxLimitNameBytes) return "a cap was passed";
  const auto defined = query.defined_inline.value_or(InlineLimit{});
  if (defined.name.size() > kMaxLimitNameBytes) return "a cap was passed";
  for (const std::string_view view :
       {query.key, query.limit, defined.name, defined.tiers[0].rate, defined.encoded}) {
    if (!is_inside(view, copy.span())) return "a view outside the bytes";
  }
  return "";
}

TEST_CASE("request: whatever arrives, sizes, views and caps hold and the end is where msgpack-c sees it") {
  RandomMessages random(11);
  const auto whole = samples();
  for (int round = 0; round < 60'000; ++round) {
    std::string bytes = whole[random.below(whole.size())];
    if (random.below(4) == 0) bytes += whole[random.below(whole.size())];
    if (random.below(10) != 0) bytes = random.damaged(std::move(bytes));
    const std::string problem = broken_promise(bytes);
    if (!problem.empty()) FAIL_CHECK(problem << ": " << testing::to_hex(bytes));
  }
}

TEST_CASE("request: requests with random values for params hold to the same") {
  RandomMessages random(12);
  for (int round = 0; round < 30'000; ++round) {
    std::string params = encode::array(random.below(6));
    for (int i = 0; i < 4; ++i) params += random.below(3) == 0 ? random.value(2) : encode::str("api");
    const std::string bytes =
        encode::request(random.value(0), random.below(2) == 0 ? "allow" : "peek", params);
    const std::string problem = broken_promise(bytes);
    if (!problem.empty()) FAIL_CHECK(problem << ": " << testing::to_hex(bytes));
  }
}

// What a message says, as text; fields that its kind does not have are left out.
std::string meaning_of(const Message& message) {
  std::string text = std::to_string(static_cast<int>(message.kind)) + " " + std::to_string(message.size) +
                     " " + std::to_string(message.ends_stream);
  if (message.kind != Message::Kind::request) return text;
  const Request& request = message.request;
  text += " msgid " + std::to_string(request.msgid);
  if (request.refusal) {
    return text + " " + std::string(name_of(request.refusal->code)) + ": " +
           std::string(request.refusal->reason);
  }
  text += " method " + std::to_string(static_cast<int>(request.method));
  if (request.method != Method::allow && request.method != Method::peek) return text;
  const Query& query = request.query;
  if (query.defined_inline) {
    text += " inline " + testing::to_hex(query.defined_inline->encoded) + " " +
            testing::to_hex(query.defined_inline->name) + " " +
            testing::to_hex(query.defined_inline->tiers[0].rate) + " " +
            std::to_string(query.defined_inline->tiers[0].burst.value_or(-1));
  } else {
    text += " limit " + testing::to_hex(query.limit);
  }
  return text + " key " + testing::to_hex(query.key) + " cost " + std::to_string(query.cost) + " deadline " +
         std::to_string(query.deadline_us.value_or(-1));
}

TEST_CASE("request: a message that was used before holds nothing of what it held") {
  RandomMessages random(13);
  auto all = samples();
  all.push_back(encode::allow(3, encode::str("api") + encode::str("k") + encode::negative(-1)));
  all.push_back(encode::allow(2, std::string(4000, '\x91')));
  all.push_back("");
  all.push_back("GET / HTTP/1.1\r\n");
  // The second has the first's length and most of its bytes.
  all.push_back(encode::allow(2, encode::str("api") + encode::str("key-number-1")));
  all.push_back(encode::allow(2, encode::str("apj") + encode::str("key-number-1")));
  int repeated = 0;
  for (int connection = 0; connection < 3'000; ++connection) {
    std::string stream;
    stream.reserve(20 * 20'000);  // what was read stays where it is
    std::size_t begin = 0;
    Message used;
    std::string bytes;
    for (int round = 0; round < 20; ++round) {
      if (random.below(3) > 0) {
        const std::string& sample = all[random.below(all.size())];
        bytes = random.below(2) == 0 ? sample : random.damaged(sample);
      }
      stream.resize(begin);
      stream += bytes;
      REQUIRE(stream.capacity() == 20 * 20'000);
      read_message(testing::as_bytes(stream).subspan(begin), used);
      const std::string expected = meaning_of(read_message(testing::as_bytes(bytes)));
      if (meaning_of(used) != expected)
        FAIL(testing::to_hex(bytes) << ": " << meaning_of(used) << " for " << expected);
      repeated += used.is_repeated ? 1 : 0;
      begin += used.is_usual ? used.size : bytes.size();
    }
  }
  CHECK(repeated > 1000);
}

// The tail of a request for `allow`, behind its method: mostly [limit, key] or with a cost.
std::string usual_tail(RandomMessages& random) {
  const std::uint64_t params = random.below(8) == 0 ? random.below(6) : 2 + random.below(2);
  std::string tail = encode::array(params);
  tail += random.below(16) == 0 ? random.value(2) : encode::str(random.noise(random.below(40)));
  tail += random.below(16) == 0 ? random.value(2) : encode::str(random.noise(random.below(60)));
  if (params > 2) tail += random.below(4) == 0 ? random.value(2) : encode::integer(random.below(128));
  return tail;
}

TEST_CASE("request: what is read in a straight line means what the general reader makes of it") {
  RandomMessages random(14);
  // Only the usual encoding of the method's name is read in a straight line.
  const std::string usual = encode::str("allow"), unusual = encode::str8("allow");
  std::size_t served = 0;
  for (int round = 0; round < 4'000; ++round) {
    const std::string head = encode::array(4) + encode::integer(0) +
                             (random.below(4) == 0 ? random.value(0) : encode::u32(random.below(1U << 31)));
    std::string tail = usual_tail(random);
    if (random.below(4) == 0) tail = random.damaged(std::move(tail));
    // All that may have arrived of it, and all of it with the next one behind.
    for (std::size_t cut = 0; cut <= tail.size() + 1; ++cut) {
      const std::string arrived = cut > tail.size() ? tail + head : tail.substr(0, cut);
      const testing::ExactCopy quick(head + usual + arrived), general(head + unusual + arrived);
      const Message read = read_message(quick.span());
      Message expected = read_message(general.span());
      if (expected.size > 0) expected.size -= unusual.size() - usual.size();
      if (meaning_of(read) != meaning_of(expected))
        FAIL(testing::to_hex(head + usual + arrived)
             << ": " << meaning_of(read) << " for " << meaning_of(expected));
      if (read.kind == Message::Kind::request && !read.request.refusal) ++served;
    }
  }
  CHECK(served > 4'000);
}

TEST_CASE("request: reading one allocates nothing, be it served, refused or broken") {
  std::vector<std::string> all = samples();
  all.push_back(encode::allow(3, encode::str("api") + encode::str("k") + encode::negative(-1)));
  all.push_back(encode::allow(2, encode::str("api") + encode::str(std::string(1025, 'k'))));
  all.push_back(encode::allow(2, encode::array32(0xffffffff)));
  all.push_back(std::string(4000, '\x91'));
  all.push_back(encode::allow(2, std::string(4000, '\x91')));
  all.push_back("GET / HTTP/1.1\r\n");
  all.push_back(encode::request(encode::integer(1), "nothing", encode::bin16(std::string(9000, 'x'))));
  for (const std::string& bytes : all) {
    const std::size_t before = testing::allocations();
    const Message message = read_message(testing::as_bytes(bytes));
    const std::size_t used = testing::allocations() - before;
    CAPTURE(static_cast<int>(message.kind));
    CAPTURE(testing::to_hex(bytes.substr(0, 64)));
    CHECK(used == 0);
  }
  const std::size_t before = testing::allocations();
  const auto one = std::make_unique<int>(1);
  CHECK(testing::allocations() - before == static_cast<std::size_t>(*one));  // the count itself works
}

}  // namespace
}  // namespace allowd::protocol
