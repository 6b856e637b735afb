// SPDX-License-Identifier: MIT
//
// A byte stream over a Unix or TCP socket: what arrives is handed over in whole pieces, what leaves is
// written at once or queued.
//
// Ownership  The Stream may be destroyed at any time, also from inside its own callbacks; the socket closes
//            then and the handle's memory goes with the loop's close callback. Nothing calls the owner
//            afterwards.
// Errors     `on_end` is called when the peer has stopped sending (UV_EOF) and when reading or writing
//            failed: at most once for each, nothing after a failure.
#pragma once

#include <uv.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/loop/loop.h"
#include "agent/result/result.h"
#include "protocol/byte_buffer.h"

namespace allowd::loop {

class StreamEvents {
 public:
  // Consumes a prefix of `bytes` and says how much; the rest comes again with what arrives next.
  virtual std::size_t on_bytes(std::span<const std::byte> bytes) = 0;
  // `status` is a libuv error. UV_EOF: the peer will send nothing more, but may still read.
  virtual void on_end(int status) = 0;
  // Everything queued has left.
  virtual void on_drained() {}

 protected:
  ~StreamEvents() = default;
};

class Stream {
 public:
  enum class Family { unix_socket, tcp };

  // A stream that is not connected yet.
  Stream(Loop& loop, Family family, StreamEvents& events);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Takes the next connection off a listening pipe. 0 or a libuv error.
  [[nodiscard]] int accept_from(uv_stream_t* listener);
  // Both call `done` (with 0 or a libuv error) exactly once, unless the Stream is destroyed before.
  void connect_unix(const std::string& path, std::function<void(int)> done);
  void connect_tcp(const sockaddr* address, std::function<void(int)> done);

  void start_reading();
  void stop_reading();
  [[nodiscard]] bool is_reading() const { return is_reading_; }
  // Bytes that arrived and were not consumed.
  [[nodiscard]] std::size_t unconsumed_bytes() const { return unconsumed_.size(); }
  // Offers the unconsumed bytes again.
  void reread();

  // Sends and empties `bytes`. What the socket does not take at once is queued without a bound: watch
  // queued_bytes.
  void write(protocol::ByteBuffer& bytes);
  [[nodiscard]] std::size_t queued_bytes() const;

 private:
  struct Handle;  // lives until libuv has closed it

  static void on_alloc(uv_handle_t* handle, std::size_t, uv_buf_t* buffer);
  static void on_read(uv_stream_t* stream, ssize_t count, const uv_buf_t* buffer);
  [[nodiscard]] uv_stream_t* raw() const;
  void take(std::span<const char> bytes);
  void end(int status);

  StreamEvents& events_;
  Handle* handle_;
  bool is_reading_ = false;
  bool has_ended_ = false;
  std::uint64_t served_in_ = 0;  // see Loop::may_read
  std::vector<char> unconsumed_;
};

}  // namespace allowd::loop
