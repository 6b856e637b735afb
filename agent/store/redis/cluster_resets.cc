// SPDX-License-Identifier: MIT
//
// ClusterStore, as far as keys are forgotten on demand: the command follows redirections, and is repeated
// while nobody keeps the key or its node cannot be asked. To delete twice is to delete.
#include <utility>

#include "agent/store/redis/cluster_store.h"

namespace allowd::store {
namespace {

// A little less than a second, which is what people's clients wait.
constexpr limiter::Micros kResetWithin = std::chrono::milliseconds(900);
constexpr limiter::Micros kResetPause = std::chrono::milliseconds(50);

}  // namespace

void ClusterStore::reset(std::uint32_t group, std::string_view limit_tag, std::string_view key,
                         std::function<void(bool)> done) {
  const std::uint64_t number = ++last_reset_;
  const std::string name(redis_key(group, limit_tag, key));
  Reset& reset =
      resets_
          .try_emplace(number, Reset{name, group, 0, std::move(done), loop::Timer(loop_), loop::Timer(loop_)})
          .first->second;
  reset.patience.once(kResetWithin, [this, number] { end_reset(number, false); });
  send_reset(number, groups_[group].node, false);
}

void ClusterStore::send_reset(std::uint64_t number, Node* node, bool is_asking) {
  if (node == nullptr || !node->shard->is_up()) return repeat_reset(number);
  const std::string key = resets_.at(number).redis_key;
  node->shard->reset(key, is_asking, [this, number, from = node->endpoint](const Reply& reply) {
    // What comes after the patience has ended is of no interest.
    if (resets_.contains(number)) on_reset(number, from, reply);
  });
}

void ClusterStore::on_reset(std::uint64_t number, const RedisEndpoint& from, const Reply& reply) {
  if (reply == nullptr) return repeat_reset(number);
  if (!is_error(reply)) return end_reset(number, true);
  Reset& reset = resets_.at(number);
  switch (const ServerError error = read_error(text_of(reply)).kind) {
    case ServerError::moved:
    case ServerError::ask: {
      ++redirections_total_;
      if (++reset.redirections > kMostRedirections) return end_reset(number, false);
      Node* next = node_of(text_of(reply), from);
      if (error == ServerError::moved) watch_.doubt();
      if (error == ServerError::moved && next != nullptr) assign(reset.group, next);
      return send_reset(number, next, error == ServerError::ask);
    }
    case ServerError::cluster_down: watch_.miss(); [[fallthrough]];
    case ServerError::try_again: return repeat_reset(number);
    default: return end_reset(number, false);
  }
}

void ClusterStore::repeat_reset(std::uint64_t number) {
  Reset& reset = resets_.at(number);
  reset.redirections = 0;
  reset.pause.once(kResetPause,
                   [this, number] { send_reset(number, groups_[resets_.at(number).group].node, false); });
}

void ClusterStore::end_reset(std::uint64_t number, bool is_done) {
  const auto ended = resets_.extract(number);
  ended.mapped().done(is_done);
}

}  // namespace allowd::store
