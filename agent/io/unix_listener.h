// SPDX-License-Identifier: MIT
//
// A listening Unix socket with an owner, a mode, and manners towards whatever stands at its path.
//
// What is at the path already   A lock file beside it (`<path>.lock`) says whether its agent lives. If not,
//                               a socket that refuses connections is a leftover and is replaced; one that
//                               answers belongs to somebody and is left alone, and anything that is no
//                               socket is never touched.
// Order                         bind, chmod and chown, then listen: nobody connects under the wrong mode.
// At the end                    The socket is unlinked only if it is still the one that we made.
//
// libuv gets the finished socket: its own bind cuts long paths off, cannot set a group-only mode, and unlinks
// by name on close, whoever the name belongs to by then.
#pragma once

#include <sys/types.h>
#include <uv.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/loop/loop.h"
#include "agent/result/result.h"

namespace allowd::io {

class UnixListener {
 public:
  struct Options {
    std::string path;
    std::uint32_t mode = 0660;
    std::string group;  // empty: the process's own
  };

  // Listens, and calls `on_connection` whenever one waits; take it with Stream::accept_from(raw()). While it
  // is not taken, no other is announced: that is how to hold connections back.
  static Result<std::unique_ptr<UnixListener>> open(loop::Loop& loop, const Options& options,
                                                    std::function<void()> on_connection);
  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  [[nodiscard]] uv_stream_t* raw() { return reinterpret_cast<uv_stream_t*>(handle_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  UnixListener() = default;

  std::string path_;
  int lock_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::function<void()> on_connection_;
  uv_pipe_t* handle_ = nullptr;
};

}  // namespace allowd::io
