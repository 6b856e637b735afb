// SPDX-License-Identifier: MIT
#include "agent/loop/stream.h"

#include <cassert>
#include <cstring>
#include <functional>
#include <new>

namespace allowd::loop {

struct Stream::Handle {
  Stream* owner = nullptr;  // null once the Stream is gone
  Loop* loop = nullptr;
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_pipe_t pipe;
    uv_tcp_t tcp;
  };
  uv_connect_t connecting{};
  std::function<void(int)> on_connected;

  static Handle& of(void* data) { return *static_cast<Handle*>(data); }
};

namespace {

// A write that the socket did not take at once owns its bytes.
struct QueuedWrite {
  uv_write_t request{};
  protocol::ByteBuffer bytes;
};

}  // namespace

Stream::Stream(Loop& loop, Family family, StreamEvents& events) : events_(events), handle_(new Handle) {
  handle_->owner = this;
  handle_->loop = &loop;
  const int status = family == Family::tcp ? uv_tcp_init(loop.raw(), &handle_->tcp)
                                           : uv_pipe_init(loop.raw(), &handle_->pipe, 0);
  // Both only fill in a struct; a socket is made later.
  if (status != 0) throw std::bad_alloc();
  handle_->handle.data = handle_;
}

Stream::~Stream() {
  handle_->owner = nullptr;
  uv_close(&handle_->handle, [](uv_handle_t* closed) { delete &Handle::of(closed->data); });
}

uv_stream_t* Stream::raw() const { return &handle_->stream; }

int Stream::accept_from(uv_stream_t* listener) { return uv_accept(listener, raw()); }

void Stream::connect_unix(const std::string& path, std::function<void(int)> done) {
  handle_->on_connected = std::move(done);
  handle_->connecting.data = handle_;
  uv_pipe_connect(&handle_->connecting, &handle_->pipe, path.c_str(), [](uv_connect_t* request, int status) {
    Handle& handle = Handle::of(request->data);
    if (handle.owner != nullptr) std::exchange(handle.on_connected, nullptr)(status);
  });
}

void Stream::connect_tcp(const sockaddr* address, std::function<void(int)> done) {
  handle_->on_connected = std::move(done);
  handle_->connecting.data = handle_;
  uv_tcp_nodelay(&handle_->tcp, 1);
  uv_tcp_keepalive(&handle_->tcp, 1, 30);
  const int status =
      uv_tcp_connect(&handle_->connecting, &handle_->tcp, address, [](uv_connect_t* request, int result) {
        Handle& handle = Handle::of(request->data);
        if (handle.owner != nullptr) std::exchange(handle.on_connected, nullptr)(result);
      });
  if (status != 0) std::exchange(handle_->on_connected, nullptr)(status);
}

void Stream::start_reading() {
  if (is_reading_ || has_ended_) return;
  is_reading_ = true;
  if (const int status = uv_read_start(raw(), on_alloc, on_read); status != 0) end(status);
}

void Stream::stop_reading() {
  is_reading_ = false;
  uv_read_stop(raw());
}

void Stream::on_alloc(uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
  Handle& own = Handle::of(handle->data);
  Loop& loop = *own.loop;
  // Without a buffer libuv reads nothing, says UV_ENOBUFS, and offers the socket again in the next turn.
  if (own.owner != nullptr && !loop.may_read(own.owner->served_in_)) {
    *buffer = uv_buf_init(nullptr, 0);
    return;
  }
  const auto bytes = loop.read_buffer();
  *buffer = uv_buf_init(bytes.data() + Loop::kHeadroomBytes, Loop::kReadBytes);
}

void Stream::on_read(uv_stream_t* stream, ssize_t count, const uv_buf_t* buffer) {
  Stream* owner = Handle::of(stream->data).owner;
  if (owner == nullptr || count == 0 || count == UV_ENOBUFS) return;
  if (count < 0) return owner->end(static_cast<int>(count));
  char* start = buffer->base;
  std::size_t size = static_cast<std::size_t>(count);
  auto& rest = owner->unconsumed_;
  if (!rest.empty()) {
    // Put the unfinished message in front of its continuation instead of moving the new bytes.
    assert(rest.size() <= Loop::kHeadroomBytes);
    start -= rest.size();
    std::memcpy(start, rest.data(), rest.size());
    size += rest.size();
    rest.clear();
  }
  owner->take({start, size});
}

void Stream::take(std::span<const char> bytes) {
  Handle* handle = handle_;
  const std::size_t used = events_.on_bytes(std::as_bytes(bytes));
  if (handle->owner == nullptr || used == bytes.size()) return;
  unconsumed_.assign(bytes.begin() + static_cast<std::ptrdiff_t>(used), bytes.end());
}

void Stream::reread() {
  if (unconsumed_.empty()) return;
  const std::vector<char> bytes = std::exchange(unconsumed_, {});
  take(bytes);
}

void Stream::write(protocol::ByteBuffer& bytes) {
  if (bytes.empty() || has_ended_) return bytes.clear();
  uv_buf_t buffer = uv_buf_init(bytes.data(), static_cast<unsigned>(bytes.size()));
  const int sent = uv_try_write(raw(), &buffer, 1);
  if (sent < 0 && sent != UV_EAGAIN) {
    bytes.clear();
    return end(sent);
  }
  const auto taken = sent > 0 ? static_cast<std::size_t>(sent) : 0;
  if (taken == bytes.size()) return bytes.clear();

  auto* queued = new QueuedWrite;
  bytes.drop_front(taken);
  queued->bytes = std::exchange(bytes, {});
  queued->request.data = queued;
  buffer = uv_buf_init(queued->bytes.data(), static_cast<unsigned>(queued->bytes.size()));
  const int status = uv_write(&queued->request, raw(), &buffer, 1, [](uv_write_t* request, int result) {
    Stream* owner = Handle::of(request->handle->data).owner;
    delete static_cast<QueuedWrite*>(request->data);
    if (owner == nullptr) return;
    if (result != 0) return owner->end(result);
    if (owner->queued_bytes() == 0) owner->events_.on_drained();
  });
  if (status != 0) {
    delete queued;
    end(status);
  }
}

std::size_t Stream::queued_bytes() const { return uv_stream_get_write_queue_size(raw()); }

void Stream::end(int status) {
  if (has_ended_) return;
  has_ended_ = status != UV_EOF;
  stop_reading();
  events_.on_end(status);
}

}  // namespace allowd::loop
