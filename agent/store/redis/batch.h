// SPDX-License-Identifier: MIT
//
// What goes between a shard and whoever knows the other shards, where keys may move from one to another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "agent/store/redis/codec/script_call.h"
#include "agent/store/redis/codec/server_error.h"

namespace allowd::store {

class Shard;

// That a question, or a reset, follows before it fails.
inline constexpr int kMostRedirections = 5;

// Questions that go as one script. All of their keys are of one group, and so in one slot.
struct Batch {
  // Tickets of askers are never this: questions of the shard's own (giving back) carry it.
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};

  std::shared_ptr<ScriptCall> call;
  std::uint32_t group = 0;
  bool is_asking = false;         // about keys that the server does not keep yet (ASKING)
  std::uint64_t wave = 0;         // see Shard
  std::uint32_t incarnation = 0;  // once it is sent: of the server, see Link
};

// Permits that were granted to nobody, to be given back to the server that granted them.
struct GiveBack {
  std::string redis_key;
  limiter::DefinitionPtr definition;
  std::int64_t cost = 0;
  std::uint32_t group = 0;
};

class BatchRouter {
 public:
  // A server has answered that the batch belongs elsewhere, or cannot be asked as one script: `error` is a
  // moved, ask or try_again, of that text. Nothing was charged; the shard has nothing to do with it any more.
  virtual void redirect(Shard& from, const Batch& batch, ServerError error, std::string_view text) = 0;
  // A server has said something that makes it likely that keys have moved.
  virtual void doubt_map() = 0;
  // One has said that nobody keeps them.
  virtual void miss_keeper() = 0;

 protected:
  ~BatchRouter() = default;
};

}  // namespace allowd::store
