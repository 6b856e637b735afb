// SPDX-License-Identifier: MIT
#include "agent/loop/address_book.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace allowd::loop {
namespace {

bool same_address(const sockaddr_storage& a, const sockaddr_storage& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;  // both were zero before they were filled in
}

}  // namespace

AddressBook::Host& AddressBook::host_of(const std::string& name, std::uint16_t port) {
  const auto known = std::find_if(hosts_.begin(), hosts_.end(),
                                  [&](const auto& host) { return host->name == name && host->port == port; });
  if (known != hosts_.end()) {
    std::rotate(known, known + 1, hosts_.end());
    return *hosts_.back();
  }
  if (hosts_.size() >= kMaxHosts) {
    // Rather one whose look-up does not hang: forgetting such a one would allow another beside it.
    const auto idle =
        std::find_if(hosts_.begin(), hosts_.end(), [](const auto& host) { return !host->is_looked_up; });
    hosts_.erase(idle == hosts_.end() ? hosts_.begin() : idle);
  }
  return *hosts_.emplace_back(std::make_unique<Host>(loop_, name, port));
}

void AddressBook::find(const std::string& host_name, std::uint16_t port, Done done) {
  forget();
  Host& host = host_of(host_name, port);
  asked_ = &host;
  done_ = std::move(done);
  // Timers may run a little before their time by the loop's clock.
  const bool is_late =
      host.is_looked_up && (host.has_timed_out || loop_.now() - host.looked_up_at >= patience_);
  if (is_late && !host.known.empty()) return answer(host, UV_ETIMEDOUT);
  patience_timer_.once(patience_, [this, &host] {
    ++failures_;
    host.has_timed_out = true;
    answer(host, UV_ETIMEDOUT);
  });
  if (!host.is_looked_up) look_up(host);
}

void AddressBook::look_up(Host& host) {
  host.is_looked_up = true;
  host.has_timed_out = false;
  host.looked_up_at = loop_.now();
  host.resolver.resolve(host.name, host.port, [this, &host](int status, Resolver::Addresses addresses) {
    on_looked_up(host, status, std::move(addresses));
  });
}

void AddressBook::on_looked_up(Host& host, int status, Resolver::Addresses addresses) {
  host.is_looked_up = false;
  if (status == 0 && addresses.empty()) status = UV_EAI_NODATA;
  if (status == 0) {
    const bool begins_as_before = !host.known.empty() && same_address(host.known.back(), addresses.front());
    host.known = std::move(addresses);
    if (begins_as_before) std::rotate(host.known.begin(), host.known.begin() + 1, host.known.end());
  }
  if (asked_ != &host) return;
  if (status != 0) ++failures_;
  answer(host, status);
}

void AddressBook::answer(Host& host, int look_up_status) {
  patience_timer_.stop();
  asked_ = nullptr;
  Found found;
  found.look_up_status = look_up_status;
  found.status = host.known.empty() ? look_up_status : 0;
  found.is_remembered = look_up_status != 0 && !host.known.empty();
  found.addresses = host.known;
  // What was in front now stands last, and something else is tried first the next time.
  if (!host.known.empty()) std::rotate(host.known.begin(), host.known.begin() + 1, host.known.end());
  if (auto done = std::exchange(done_, nullptr)) done(std::move(found));
}

void AddressBook::forget() {
  patience_timer_.stop();
  asked_ = nullptr;
  done_ = nullptr;
}

}  // namespace allowd::loop
