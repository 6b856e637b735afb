// SPDX-License-Identifier: MIT
//
// Which of several servers keeps a key: the one whose name, mixed with the key, scores highest.
//
// "Rendezvous" or "highest random weight" hashing (Thaler & Ravishankar, "Using Name-Based Mappings to
// Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1), 1998). Every agent finds the same server
// without asking anybody: the order of the names means nothing, and a name that comes or goes moves only the
// keys that it gains or had, one in n.
//
// A key's score at a name is mix(XXH64(key) ^ XXH64(name)), both with seed 0, where mix is the finalizer of
// SplitMix64 (Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). This is
// part of what agents of all versions share: OPERATING.md has vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace allowd::store {

class Rendezvous {
 public:
  // Expects at least one name, and no two alike.
  explicit Rendezvous(std::span<const std::string> names);

  // The index of the name that keeps the key. Hashes the key once, and not at all for a single name.
  [[nodiscard]] std::size_t choose(std::string_view key) const;
  // The index of the name that comes after `rank` others; past the last one the first comes again.
  [[nodiscard]] std::size_t choose(std::string_view key, std::size_t rank) const;

  [[nodiscard]] std::size_t size() const { return name_hashes_.size(); }

 private:
  std::vector<std::uint64_t> name_hashes_;
};

}  // namespace allowd::store
