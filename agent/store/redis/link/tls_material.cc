// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/tls_material.h"

#include <utility>

#include "agent/log/log.h"

namespace allowd::store {

TlsMaterial::TlsMaterial(loop::Loop& loop, tls::TlsOptions options)
    : options_(std::move(options)), task_(loop) {
  if (!options_.verify) {
    log::warn(
        "redis: TLS: verify = false: any certificate is believed, so whoever sits in between can pass for "
        "Redis");
  }
}

TlsMaterial::Wish TlsMaterial::read(Done done) {
  auto wish = std::make_shared<Done>(std::move(done));
  waiting_.push_back(wish);
  if (!task_.is_running()) start();
  return wish;
}

void TlsMaterial::start() {
  auto made = std::make_shared<std::optional<Result<tls::TlsContext>>>();
  task_.start(
      [made, options = options_] {
        made->emplace(tls::TlsContext::make(options));
        tls::release_thread();
      },
      [this, made] { finish(std::move(**made)); });
}

void TlsMaterial::finish(Result<tls::TlsContext> made) {
  if (made) {
    last_good_ = *made;
    if (std::exchange(has_reported_, false)) log::info("redis: TLS: the files can be read again");
  } else if (last_good_) {
    if (!std::exchange(has_reported_, true))
      log::warn("redis: TLS: {}; what was read before stays in use", made.error().message);
    made = *last_good_;
  }
  for (const auto& waiting : std::exchange(waiting_, {})) {
    if (const Wish wish = waiting.lock()) (*wish)(made);
  }
}

}  // namespace allowd::store
