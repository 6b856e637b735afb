// SPDX-License-Identifier: MIT
//
// All requests of a run, encoded beforehand, one per key, in the order in which they will be asked.
//
// Encoding costs nothing while measuring: a request is copied from here and two or three of its bytes are
// changed. The order is a fixed shuffle, the same in every run, so that neighbours in time are no neighbours
// in the server's table; the requests lie in that order, so that walking them is kind to *our* cache.
//
// Ownership  Owns the bytes; next() lends them until the table goes.
// Units      Bytes. At most kMaxKeys keys.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace allowd::bench {

class RequestTable {
 public:
  static constexpr std::uint64_t kMaxKeys = 4'000'000;

  // Makes the request for one key. All requests must come out equally long.
  using Encode = std::function<std::string(const std::string& key)>;

  // Keys are `prefix` and seven digits.
  RequestTable(const std::string& prefix, std::uint64_t keys, const Encode& encode);

  [[nodiscard]] std::size_t request_bytes() const noexcept { return request_bytes_; }

  // The next request of the walk; after the last comes the first.
  [[nodiscard]] const std::byte* next() noexcept {
    const std::byte* request = bytes_.data() + next_;
    next_ += request_bytes_;
    next_ = next_ == bytes_.size() ? 0 : next_;
    return request;
  }
  void restart() noexcept { next_ = 0; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t request_bytes_ = 0;
  std::size_t next_ = 0;  // offset
};

}  // namespace allowd::bench
