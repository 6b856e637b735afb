// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/password_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace allowd::store {
namespace {

constexpr std::size_t kMaxBytes = 64 * 1024;

class File {
 public:
  // Non-blocking, since opening a FIFO would wait for somebody who writes to it.
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

Error problem_with(const std::string& path, std::string_view what) {
  return {Error::Code::retry_later, "the password file " + path + " " + std::string(what)};
}

}  // namespace

Result<std::string> read_password_file(const std::string& path) {
  const File file(path);
  if (file.fd() < 0) return problem_with(path, std::string("cannot be read: ") + std::strerror(errno));
  struct stat about {};
  if (::fstat(file.fd(), &about) != 0 || !S_ISREG(about.st_mode)) return problem_with(path, "is not a file");
  std::string password(kMaxBytes + 1, '\0');
  std::size_t size = 0;
  while (size < password.size()) {
    const ssize_t count = ::read(file.fd(), password.data() + size, password.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return problem_with(path, std::string("cannot be read: ") + std::strerror(errno));
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size > kMaxBytes) return problem_with(path, "is over 64 KiB");
  password.resize(size);
  if (password.ends_with('\n')) password.pop_back();
  if (password.ends_with('\r')) password.pop_back();
  if (password.empty()) return problem_with(path, "is empty");
  return password;
}

void PasswordFile::read(const std::string& path, Done done) {
  done_ = std::move(done);
  if (task_.is_running()) {
    if (path == path_) return;  // that one will answer
    return std::exchange(done_,
                         nullptr)(problem_with(path, "waits for another one that is still being read"));
  }
  path_ = path;
  const auto password = std::make_shared<Result<std::string>>(std::string());
  task_.start([path, password] { *password = read_password_file(path); },
              [this, password] {
                if (auto waiting = std::exchange(done_, nullptr)) waiting(std::move(*password));
              });
}

}  // namespace allowd::store
