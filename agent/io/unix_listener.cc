// SPDX-License-Identifier: MIT
#include "agent/io/unix_listener.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace allowd::io {
namespace {

constexpr int kBacklog = 1024;

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd& operator=(Fd&&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

Error failed(const std::string& path, std::string_view what, int error) {
  return {Error::Code::system, path + ": " + std::string(what) + ": " + std::strerror(error)};
}

Error refused(const std::string& path, std::string_view why) {
  return {Error::Code::system, path + ": " + std::string(why)};
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());  // the length was checked; the rest is zeros
  return address;
}

Result<Fd> take_lock(const std::string& path) {
  const std::string lock_path = path + ".lock";
  Fd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.get() < 0) return failed(lock_path, "cannot open", errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK)
    return refused(path, "another allowd is running on this socket (it holds the lock file)");
  return failed(lock_path, "cannot lock", errno);
}

// Removes a socket that nobody listens on. Everything else stays, and is an error.
Failure clear_leftover(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return failed(path, "cannot look", errno);
  }
  if (!S_ISSOCK(status.st_mode)) return refused(path, "exists and is not a socket; it is left alone");
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (probe.get() < 0) return failed(path, "socket", errno);
  const sockaddr_un address = address_of(path);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno == EAGAIN) {
    return refused(path, "somebody is listening on this socket already");
  }
  if (errno != ECONNREFUSED) return failed(path, "cannot tell whether anybody listens", errno);
  if (::unlink(path.c_str()) != 0) return failed(path, "cannot remove the leftover socket", errno);
  return {};
}

Result<gid_t> find_group(const std::string& path, const std::string& name) {
  const group* found = ::getgrnam(name.c_str());
  if (found == nullptr) return refused(path, "no group is named " + name);
  return found->gr_gid;
}

Failure set_access(const UnixListener::Options& options) {
  const std::string& path = options.path;
  if (!options.group.empty()) {
    auto gid = find_group(path, options.group);
    if (!gid) return std::move(gid.error());
    if (::chown(path.c_str(), static_cast<uid_t>(-1), *gid) != 0) return failed(path, "chown", errno);
  }
  if (::chmod(path.c_str(), options.mode) != 0) return failed(path, "chmod", errno);
  return {};
}

Result<Fd> bind_and_listen(const UnixListener::Options& options) {
  const std::string& path = options.path;
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return failed(path, "socket", errno);
  const sockaddr_un address = address_of(path);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return failed(path, "cannot create the socket", errno);
  }
  auto problem = set_access(options);
  if (!problem && ::listen(fd.get(), kBacklog) != 0) problem = failed(path, "listen", errno);
  if (problem) {
    ::unlink(path.c_str());
    return std::move(*problem);
  }
  return fd;
}

}  // namespace

Result<std::unique_ptr<UnixListener>> UnixListener::open(loop::Loop& loop, const Options& options,
                                                         std::function<void()> on_connection) {
  const std::string& path = options.path;
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return refused(path, "is " + std::to_string(path.size()) + " bytes long; a socket's path may have 107");
  }
  auto lock = take_lock(path);
  if (!lock) return std::move(lock.error());
  if (auto problem = clear_leftover(path)) return std::move(*problem);
  auto fd = bind_and_listen(options);
  if (!fd) return std::move(fd.error());

  std::unique_ptr<UnixListener> listener(new UnixListener);
  listener->path_ = path;
  listener->lock_ = lock->release();
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return failed(path, "cannot look", errno);
  listener->device_ = status.st_dev;
  listener->inode_ = status.st_ino;
  listener->on_connection_ = std::move(on_connection);
  listener->handle_ = new uv_pipe_t;
  uv_pipe_init(loop.raw(), listener->handle_, 0);
  listener->handle_->data = listener.get();
  int result = uv_pipe_open(listener->handle_, fd->get());
  if (result != 0) return failed(path, "uv_pipe_open", -result);
  static_cast<void>(fd->release());
  result = uv_listen(listener->raw(), kBacklog, [](uv_stream_t* handle, int) {
    // An error here means that no descriptor was free; the connection stays in the backlog until one is.
    if (auto* owner = static_cast<UnixListener*>(handle->data)) owner->on_connection_();
  });
  if (result != 0) return failed(path, "listen", -result);
  return listener;
}

UnixListener::~UnixListener() {
  if (handle_ != nullptr) {
    handle_->data = nullptr;
    uv_close(reinterpret_cast<uv_handle_t*>(handle_),
             [](uv_handle_t* closed) { delete reinterpret_cast<uv_pipe_t*>(closed); });
  }
  struct stat status {};
  const bool is_ours =
      ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
  if (is_ours) ::unlink(path_.c_str());
  // The lock file stays: removing it would race with an agent that is just taking it.
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace allowd::io
