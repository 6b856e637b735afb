// SPDX-License-Identifier: MIT
//
// Redis's protocol, RESP2: commands as bytes, and hiredis's reader behind a guard.
//
// The reader alone trusts its peer: a 12-byte array header makes it allocate 762 MiB, a bulk length is
// buffered without end, and hiredis 1.2 recurses as deep as the input says. The guard bounds all three by
// what our commands can be answered with.
//
// Ownership  A Reply is owned by its unique_ptr.
// Errors     A guarded or malformed reply ends the connection: `read` says so and stays failed.
#pragma once

#include <hiredis/hiredis.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "agent/result/result.h"
#include "protocol/byte_buffer.h"

namespace allowd::store {

using protocol::ByteBuffer;

// Starts a command of `parts` arguments; append them with write_bulk.
void write_command_header(ByteBuffer& out, std::size_t parts);
void write_bulk(ByteBuffer& out, std::string_view text);
void write_bulk(ByteBuffer& out, std::int64_t number);
// A whole command at once, for the few that are not on the hot path.
void write_command(ByteBuffer& out, std::initializer_list<std::string_view> parts);

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

[[nodiscard]] bool is_error(const Reply& reply);
[[nodiscard]] std::string_view text_of(const Reply& reply);

class ReplyReader {
 public:
  static constexpr std::size_t kMaxElements = 1024;            // in one array
  static constexpr std::size_t kMaxDepth = 4;                  // arrays in arrays
  static constexpr std::size_t kMaxUnreadBytes = 1024 * 1024;  // of a reply that is not complete

  // What one reply may be like.
  struct Caps {
    std::size_t outer_elements = kMaxElements;  // of the outermost array
    std::size_t unread_bytes = kMaxUnreadBytes;
  };

  ReplyReader() : ReplyReader(Caps()) {}
  explicit ReplyReader(const Caps& caps);

  // Takes bytes as they arrive.
  [[nodiscard]] Failure feed(std::string_view bytes);
  // The next whole reply; null: more bytes are needed.
  [[nodiscard]] Result<Reply> read();

 private:
  struct FreeReader {
    void operator()(redisReader* reader) const { redisReaderFree(reader); }
  };
  std::unique_ptr<Caps> caps_;  // the guard has its address
  std::unique_ptr<redisReader, FreeReader> reader_;
  std::size_t unfinished_bytes_ = 0;  // fed since the last whole reply
};

}  // namespace allowd::store
