// SPDX-License-Identifier: MIT
//
// The guarded reader of Redis's replies on any bytes in any pieces. The input's first byte says how many
// bytes follow that are sizes of pieces, used in turn; all the rest is what the server sends.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/limiter/token_bucket.h"
#include "agent/store/redis/bucket_script.h"
#include "agent/store/redis/resp.h"
#include "tests/fuzz/expect.h"

namespace allowd::fuzz {
namespace {

using store::BucketCall;
using store::ReplyReader;

void check_reply(const redisReply& reply, std::size_t depth) {
  if (reply.type != REDIS_REPLY_ARRAY) return;
  expect(depth < ReplyReader::kMaxDepth, "arrays nest within their cap");
  expect(reply.elements <= ReplyReader::kMaxElements, "arrays have elements within their cap");
  for (std::size_t i = 0; i < reply.elements; ++i) check_reply(*reply.element[i], depth + 1);
}

// The reply as an answer of the script to `questions` questions.
void check_answers(const redisReply& reply) {
  static const limiter::TokenBucket bucket = *limiter::TokenBucket::make({7, limiter::Micros{1'000'000}}, 50);
  static const BucketCall call = [] {
    BucketCall made;
    for (std::uint64_t i = 0; i < BucketCall::kMaxQuestions; ++i)
      made.add(limiter::Operation::take, bucket, "key", 3, i);
    return made;
  }();
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements == 0) return;
  const std::size_t questions = reply.elements - 1;
  if (questions > BucketCall::kMaxQuestions || !BucketCall::fits(reply, questions)) return;
  static_cast<void>(BucketCall::healed(reply));
  for (std::size_t i = 0; i < questions; ++i) {
    const auto decision = call.answer(reply, i).decision;
    expect(decision.remaining >= 0 && decision.remaining <= bucket.burst(),
           "what remains is within the bucket");
    expect(decision.reset_after.count() >= 0 && decision.retry_after.count() >= 0, "no wait is negative");
  }
}

struct Reading {
  std::vector<std::string> replies;  // each as its type and text
  bool has_failed = false;
};

void read_all(ReplyReader& reader, Reading& reading) {
  while (!reading.has_failed) {
    auto reply = reader.read();
    if (!reply) {
      reading.has_failed = true;
      expect(!reader.read(), "a reader that has failed stays failed");
    } else if (*reply == nullptr) {
      return;
    } else {
      check_reply(**reply, 0);
      check_answers(**reply);
      reading.replies.push_back(std::to_string((*reply)->type) + std::string(store::text_of(*reply)));
    }
  }
}

Reading read_in_pieces(std::string_view bytes, const std::vector<std::size_t>& sizes) {
  ReplyReader reader;
  Reading reading;
  for (std::size_t piece = 0; !bytes.empty() && !reading.has_failed; ++piece) {
    const std::size_t size = std::min(bytes.size(), sizes[piece % sizes.size()]);
    if (reader.feed(bytes.substr(0, size))) reading.has_failed = true;
    bytes.remove_prefix(size);
    read_all(reader, reading);
  }
  return reading;
}

}  // namespace
}  // namespace allowd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace allowd::fuzz;
  if (size == 0) return 0;
  const std::size_t counted = std::min<std::size_t>(data[0] % 16, size - 1);
  std::vector<std::size_t> sizes;
  for (std::size_t i = 1; i <= counted; ++i) sizes.push_back(std::size_t{1} + data[i]);
  if (sizes.empty()) sizes.push_back(1);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1 + counted, size - 1 - counted);
  const Reading in_pieces = read_in_pieces(bytes, sizes);
  const Reading at_once = read_in_pieces(bytes, {std::max<std::size_t>(1, bytes.size())});
  expect(in_pieces.replies == at_once.replies, "the pieces do not change the replies");
  expect(in_pieces.has_failed == at_once.has_failed, "the pieces do not change whether reading fails");
  return 0;
}
