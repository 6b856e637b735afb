// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/tls_material.h"

#include <chrono>
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
  auto found = std::make_shared<std::optional<Found>>();
  task_.start(
      [found, options = options_, before = last_stamp_, last_good = last_good_] {
        // First: what changes while it is read is read again the next time.
        tls::FileStamp stamp = tls::stamp_of(options, std::chrono::system_clock::now());
        if (last_good && stamp.shows_no_change_since(before)) {
          found->emplace(Found{std::move(stamp), *last_good});
        } else {
          found->emplace(Found{std::move(stamp), tls::TlsContext::make(options)});
        }
        tls::release_thread();
      },
      [this, found] { finish(std::move(**found)); });
}

void TlsMaterial::finish(Found found) {
  Result<tls::TlsContext>& context = found.context;
  if (context) {
    last_good_ = *context;
    last_stamp_ = std::move(found.stamp);
    if (std::exchange(has_reported_, false)) log::info("redis: TLS: the files can be read again");
  } else if (last_good_) {
    if (!std::exchange(has_reported_, true))
      log::warn("redis: TLS: {}; what was read before stays in use", context.error().message);
    context = *last_good_;
  }
  for (const auto& waiting : std::exchange(waiting_, {})) {
    if (const Wish wish = waiting.lock()) (*wish)(context);
  }
}

}  // namespace allowd::store
