// SPDX-License-Identifier: MIT
#include "agent/loop/resolver.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace allowd::loop {

struct Resolver::Lookup {
  uv_getaddrinfo_t request{};
  Resolver* owner = nullptr;
};

namespace {

Resolver::Addresses copy(const addrinfo* found) {
  Resolver::Addresses addresses;
  for (; found != nullptr; found = found->ai_next) {
    sockaddr_storage& address = addresses.emplace_back();
    std::memcpy(&address, found->ai_addr, std::min<std::size_t>(sizeof address, found->ai_addrlen));
  }
  return addresses;
}

}  // namespace

void Resolver::resolve(const std::string& host, std::uint16_t port, Done done) {
  sockaddr_storage numeric{};
  if (uv_ip4_addr(host.c_str(), port, reinterpret_cast<sockaddr_in*>(&numeric)) == 0 ||
      uv_ip6_addr(host.c_str(), port, reinterpret_cast<sockaddr_in6*>(&numeric)) == 0) {
    return done(0, {numeric});
  }
  done_ = std::move(done);
  if (lookup_ != nullptr) return;  // the one under way will answer
  lookup_ = new Lookup;
  lookup_->owner = this;
  lookup_->request.data = lookup_;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  const int status = uv_getaddrinfo(
      loop_.raw(), &lookup_->request,
      [](uv_getaddrinfo_t* request, int result, addrinfo* found) {
        const std::unique_ptr<Lookup> lookup(static_cast<Lookup*>(request->data));
        Addresses addresses = copy(found);
        uv_freeaddrinfo(found);
        if (lookup->owner == nullptr) return;
        lookup->owner->lookup_ = nullptr;
        if (auto waiting = std::exchange(lookup->owner->done_, nullptr))
          waiting(result, std::move(addresses));
      },
      host.c_str(), std::to_string(port).c_str(), &hints);
  if (status == 0) return;
  delete std::exchange(lookup_, nullptr);
  std::exchange(done_, nullptr)(status, {});
}

void Resolver::forget() {
  done_ = nullptr;
  if (lookup_ == nullptr) return;
  // Works while it is still queued; one that runs already is waited for by the next question.
  if (uv_cancel(reinterpret_cast<uv_req_t*>(&lookup_->request)) != 0) return;
  std::exchange(lookup_, nullptr)->owner = nullptr;
}

Resolver::~Resolver() {
  forget();
  if (lookup_ != nullptr) lookup_->owner = nullptr;
}

}  // namespace allowd::loop
