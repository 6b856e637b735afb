// SPDX-License-Identifier: MIT
#include "agent/store/redis/topology/rendezvous.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <numeric>

namespace allowd::store {
namespace {

std::uint64_t hash_of(std::string_view bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

Rendezvous::Rendezvous(std::span<const std::string> names) {
  assert(!names.empty());
  for (const std::string& name : names) name_hashes_.push_back(hash_of(name));
}

std::size_t Rendezvous::choose(std::string_view key) const {
  if (name_hashes_.size() == 1) return 0;
  const std::uint64_t key_hash = hash_of(key);
  std::size_t best = 0;
  std::uint64_t best_score = 0;
  // `mix` is one to one, so names with different hashes never score the same.
  for (std::size_t i = 0; i < name_hashes_.size(); ++i) {
    const std::uint64_t score = mix(key_hash ^ name_hashes_[i]);
    if (score < best_score) continue;
    best_score = score;
    best = i;
  }
  return best;
}

std::size_t Rendezvous::choose(std::string_view key, std::size_t rank) const {
  const std::uint64_t key_hash = hash_of(key);
  std::vector<std::size_t> order(name_hashes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return mix(key_hash ^ name_hashes_[a]) > mix(key_hash ^ name_hashes_[b]);
  });
  return order[rank % order.size()];
}

}  // namespace allowd::store
