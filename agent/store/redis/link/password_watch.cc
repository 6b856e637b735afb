// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/password_watch.h"

#include <utility>

namespace allowd::store {

void PasswordWatch::start(std::string path, std::string refused, std::function<void()> on_change) {
  path_ = std::move(path);
  refused_ = std::move(refused);
  on_change_ = std::move(on_change);
  timer_.every(every_, [this] { look(); });
}

void PasswordWatch::stop() {
  timer_.stop();
  file_.forget();
}

void PasswordWatch::look() {
  file_.read(path_, [this](const Result<std::string>& password) {
    if (!password || *password == refused_) return;
    timer_.stop();
    std::exchange(on_change_, nullptr)();
  });
}

}  // namespace allowd::store
