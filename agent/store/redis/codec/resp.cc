// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/resp.h"

#include <charconv>

namespace allowd::store {
namespace {

void write_line(ByteBuffer& out, char kind, std::uint64_t number) {
  constexpr std::size_t kMaxLine = 1 + 20 + 2;
  char* line = out.reserve(kMaxLine);
  char* at = line;
  *at++ = kind;
  at = std::to_chars(at, line + kMaxLine, number).ptr;
  *at++ = '\r';
  *at++ = '\n';
  out.commit(static_cast<std::size_t>(at - line));
}

const redisReplyObjectFunctions& plain_functions() {
  // hiredis keeps its own functions to itself, but a reader points to them.
  static const redisReplyObjectFunctions functions = [] {
    redisReader* reader = redisReaderCreate();
    const redisReplyObjectFunctions copy = *reader->fn;
    redisReaderFree(reader);
    return copy;
  }();
  return functions;
}

// `Count` is int in hiredis 0.14 and size_t in 1.x. Null makes the reader fail.
template <class Count>
void* create_guarded_array(const redisReadTask* task, Count count) {
  std::size_t depth = 1;
  for (const redisReadTask* at = task->parent; at != nullptr; at = at->parent) ++depth;
  const auto& caps = *static_cast<const ReplyReader::Caps*>(task->privdata);
  const std::size_t most = depth == 1 ? caps.outer_elements : ReplyReader::kMaxElements;
  const bool is_too_large = count < Count{0} || static_cast<std::size_t>(count) > most;
  if (is_too_large || depth > ReplyReader::kMaxDepth) return nullptr;
  return plain_functions().createArray(task, count);
}

redisReplyObjectFunctions* guarded_functions() {
  static redisReplyObjectFunctions functions = [] {
    redisReplyObjectFunctions copy = plain_functions();
    copy.createArray = create_guarded_array;
    return copy;
  }();
  return &functions;
}

Error violation(std::string_view what) {
  return {Error::Code::system, "the server broke the protocol: " + std::string(what)};
}

}  // namespace

void write_command_header(ByteBuffer& out, std::size_t parts) { write_line(out, '*', parts); }

void write_bulk(ByteBuffer& out, std::string_view text) {
  write_line(out, '$', text.size());
  out.append(text);
  out.append("\r\n");
}

void write_bulk(ByteBuffer& out, std::int64_t number) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  write_bulk(out, std::string_view(text, static_cast<std::size_t>(end - text)));
}

void write_command(ByteBuffer& out, std::initializer_list<std::string_view> parts) {
  write_command_header(out, parts.size());
  for (const std::string_view part : parts) write_bulk(out, part);
}

bool is_error(const Reply& reply) { return reply->type == REDIS_REPLY_ERROR; }

std::string_view text_of(const Reply& reply) {
  return reply->str == nullptr ? std::string_view() : std::string_view(reply->str, reply->len);
}

ReplyReader::ReplyReader(const Caps& caps)
    : caps_(std::make_unique<Caps>(caps)), reader_(redisReaderCreateWithFunctions(guarded_functions())) {
  reader_->privdata = caps_.get();
}

Failure ReplyReader::feed(std::string_view bytes) {
  unfinished_bytes_ += bytes.size();
  if (redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) != REDIS_OK)
    return violation(reader_->errstr);
  return {};
}

Result<Reply> ReplyReader::read() {
  void* reply = nullptr;
  if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) return violation(reader_->errstr);
  if (reply != nullptr) {
    unfinished_bytes_ = reader_->len - reader_->pos;
  } else if (unfinished_bytes_ > caps_->unread_bytes) {
    return violation("a reply is over " + std::to_string(caps_->unread_bytes / (1024 * 1024)) + " MiB");
  }
  return Reply(static_cast<redisReply*>(reply));
}

}  // namespace allowd::store
