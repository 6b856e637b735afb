// SPDX-License-Identifier: MIT
//
// All requests of a run, encoded beforehand, one per key, and the order in which they will be asked.
//
// Encoding costs nothing while measuring: a request is copied from here and two or three of its bytes are
// changed. The order is a fixed shuffle, the same in every run, so that neighbours in time are no neighbours
// in the server's table; the requests lie in that order, so that walking them is kind to *our* cache.
// With a Zipf exponent the walk is a fixed sequence of draws instead, in which the key of rank r stands in
// proportion to r^-exponent; it is the same for all generators.
//
// Ownership  Owns the bytes; next() lends them until the table goes.
// Units      Bytes. At most kMaxKeys keys.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace allowd::bench {

class RequestTable {
 public:
  static constexpr std::uint64_t kMaxKeys = 4'000'000;

  // Makes the request for one key. All requests must come out equally long.
  using Encode = std::function<std::string(const std::string& key)>;

  // Keys are `prefix` and seven digits. Without an exponent every key is asked once per walk.
  RequestTable(const std::string& prefix, std::uint64_t keys, std::optional<double> zipf_exponent,
               const Encode& encode);

  [[nodiscard]] std::size_t request_bytes() const noexcept { return request_bytes_; }

  // The next request of the walk; after the last comes the first.
  [[nodiscard]] const std::byte* next() noexcept {
    if (!drawn_.empty()) {
      const std::byte* request = bytes_.data() + drawn_[next_] * request_bytes_;
      next_ = next_ + 1 == drawn_.size() ? 0 : next_ + 1;
      return request;
    }
    const std::byte* request = bytes_.data() + next_;
    next_ += request_bytes_;
    next_ = next_ == bytes_.size() ? 0 : next_;
    return request;
  }
  void restart() noexcept { next_ = 0; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t request_bytes_ = 0;
  std::vector<std::uint32_t> drawn_;  // which request, by its place; empty: each once
  std::size_t next_ = 0;              // into drawn_ if there is one, else an offset into bytes_
};

}  // namespace allowd::bench
