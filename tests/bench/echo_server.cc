// SPDX-License-Identifier: MIT
//
// The yardstick: a Unix-socket server that does what any libuv server must do and nothing else.
//
//   echo_server PATH
//
// It writes back what it reads: one shared 64 KiB read buffer, uv_try_write for the answer, uv_write for what
// the socket did not take. What the agent costs beyond this is what parsing and deciding cost.
// SIGTERM and SIGINT end it. Exit code 1 and one line on stderr if it cannot listen.

#include <unistd.h>
#include <uv.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace allowd::bench {
namespace {

constexpr std::size_t kReadBufferBytes = 64 * 1024;
constexpr int kBacklog = 1024;

std::array<char, kReadBufferBytes> read_buffer;  // libuv reads straight after asking for it: one is enough

// What one uv_try_write left over. The request owns its bytes until libuv hands it back.
struct Rest {
  uv_write_t request{};
  std::vector<char> bytes;
};

void close_client(uv_handle_t* handle) {
  if (uv_is_closing(handle) == 0) {
    uv_close(handle, [](uv_handle_t* closed) { delete reinterpret_cast<uv_pipe_t*>(closed); });
  }
}

void on_rest_written(uv_write_t* request, int status) {
  const std::unique_ptr<Rest> rest(static_cast<Rest*>(request->data));
  if (status < 0) {
    close_client(reinterpret_cast<uv_handle_t*>(request->handle));
  }
}

void write_rest(uv_stream_t* client, const char* bytes, std::size_t size) {
  auto rest = std::make_unique<Rest>();
  rest->bytes.assign(bytes, bytes + size);
  rest->request.data = rest.get();
  const uv_buf_t buffer = uv_buf_init(rest->bytes.data(), static_cast<unsigned>(size));
  if (uv_write(&rest->request, client, &buffer, 1, on_rest_written) == 0) {
    static_cast<void>(rest.release());  // on_rest_written takes it back
  } else {
    close_client(reinterpret_cast<uv_handle_t*>(client));
  }
}

void on_alloc(uv_handle_t* /*handle*/, std::size_t /*suggested*/, uv_buf_t* buffer) {
  *buffer = uv_buf_init(read_buffer.data(), kReadBufferBytes);
}

void on_read(uv_stream_t* client, ssize_t count, const uv_buf_t* buffer) {
  if (count < 0) {
    close_client(reinterpret_cast<uv_handle_t*>(client));
    return;
  }
  if (count == 0) {
    return;
  }
  const uv_buf_t answer = uv_buf_init(buffer->base, static_cast<unsigned>(count));
  int written = uv_try_write(client, &answer, 1);
  if (written == UV_EAGAIN) {
    written = 0;
  }
  if (written < 0) {
    close_client(reinterpret_cast<uv_handle_t*>(client));
  } else if (written < count) {
    write_rest(client, buffer->base + written, static_cast<std::size_t>(count - written));
  }
}

void on_connection(uv_stream_t* listener, int status) {
  if (status < 0) {
    return;
  }
  auto client = std::make_unique<uv_pipe_t>();
  if (uv_pipe_init(listener->loop, client.get(), 0) != 0) {
    return;
  }
  uv_pipe_t* handle = client.release();  // from here on its close callback frees it
  auto* stream = reinterpret_cast<uv_stream_t*>(handle);
  if (uv_accept(listener, stream) != 0 || uv_read_start(stream, on_alloc, on_read) != 0) {
    close_client(reinterpret_cast<uv_handle_t*>(handle));
  }
}

int fail(const char* what, int status) {
  std::fprintf(stderr, "echo_server: %s: %s\n", what, uv_strerror(status));
  return 1;
}

int serve(const char* path) {
  uv_loop_t* loop = uv_default_loop();
  uv_pipe_t listener{};
  uv_signal_t terminate{};
  uv_signal_t interrupt{};
  uv_pipe_init(loop, &listener, 0);
  uv_signal_init(loop, &terminate);
  uv_signal_init(loop, &interrupt);
  const auto stop = [](uv_signal_t* signal, int /*number*/) { uv_stop(signal->loop); };
  uv_signal_start(&terminate, stop, SIGTERM);
  uv_signal_start(&interrupt, stop, SIGINT);

  if (const int status = uv_pipe_bind(&listener, path); status != 0) {
    return fail(path, status);
  }
  if (const int status = uv_listen(reinterpret_cast<uv_stream_t*>(&listener), kBacklog, on_connection);
      status != 0) {
    return fail(path, status);
  }
  uv_run(loop, UV_RUN_DEFAULT);

  // Close everything, so that a leak checker sees a tidy end and the socket file goes.
  uv_walk(
      loop,
      [](uv_handle_t* handle, void* keep) {
        if (uv_is_closing(handle) != 0) {
          return;
        }
        const bool is_client = handle->type == UV_NAMED_PIPE && handle != keep;
        is_client ? close_client(handle) : uv_close(handle, nullptr);
      },
      &listener);
  uv_run(loop, UV_RUN_DEFAULT);
  return uv_loop_close(loop) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace allowd::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: echo_server PATH\n");
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);  // uv_try_write does not ask for EPIPE alone
  return allowd::bench::serve(argv[1]);
}
