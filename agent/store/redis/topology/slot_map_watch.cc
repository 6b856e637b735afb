// SPDX-License-Identifier: MIT
#include "agent/store/redis/topology/slot_map_watch.h"

#include <algorithm>
#include <utility>

#include "agent/log/log.h"

namespace allowd::store {
namespace {

constexpr limiter::Micros kPatience = std::chrono::milliseconds(500);
constexpr limiter::Micros kBetween = std::chrono::seconds(1);
constexpr int kMostDoublings = 2;
constexpr limiter::Micros kUndoubted = std::chrono::seconds(60);

}  // namespace

SlotMapWatch::SlotMapWatch(loop::Loop& loop, std::vector<RedisEndpoint> seeds,
                           std::shared_ptr<TlsMaterial> tls, std::uint64_t random_seed, Known known,
                           OnMap on_map)
    : loop_(loop),
      seeds_(std::move(seeds)),
      tls_(std::move(tls)),
      known_(std::move(known)),
      on_map_(std::move(on_map)),
      random_(random_seed),
      timer_(loop) {}

limiter::Micros SlotMapWatch::next_wait() {
  const limiter::Micros least = is_doubted_   ? kBetween
                                : is_missing_ ? kBetween * (1 << std::min(rounds_missing_, kMostDoublings))
                                              : kUndoubted;
  return least + limiter::Micros{std::uniform_int_distribution<std::int64_t>(0, least.count() / 4)(random_)};
}

void SlotMapWatch::doubt() {
  if (std::exchange(is_doubted_, true) || is_asking_) return;
  schedule();
}

void SlotMapWatch::miss() {
  if (std::exchange(is_missing_, true) || is_doubted_ || is_asking_) return;
  schedule();
}

void SlotMapWatch::schedule() {
  timer_.once(std::max(limiter::Micros{0}, began_at_ + next_wait() - loop_.now()), [this] { begin(); });
}

void SlotMapWatch::begin() {
  is_asking_ = true;
  rounds_missing_ = is_missing_ && !is_doubted_ ? rounds_missing_ + 1 : 0;
  is_doubted_ = is_missing_ = false;
  began_at_ = loop_.now();
  problems_.clear();
  ++refreshes_total_;
  to_ask_.assign(seeds_.rbegin(), seeds_.rend());
  std::vector<RedisEndpoint> known = known_();
  std::shuffle(known.begin(), known.end(), random_);
  to_ask_.insert(to_ask_.end(), known.begin(), known.end());
  ask_next();
}

void SlotMapWatch::ask_next() {
  if (to_ask_.empty()) return end(false);
  const RedisEndpoint asked = std::move(to_ask_.back());
  to_ask_.pop_back();
  query_ = std::make_unique<Query>(
      loop_, asked, tls_, std::initializer_list<std::string_view>{"CLUSTER", "SLOTS"}, SlotMap::kCaps);
  query_->start(kPatience, [this, asked](const Result<Reply>& answer) { on_answer(asked, answer); });
}

void SlotMapWatch::on_answer(const RedisEndpoint& asked, const Result<Reply>& answer) {
  const auto map = answer ? SlotMap::read(**answer, asked.host) : Result<SlotMap>(answer.error());
  if (map && on_map_(*map)) return end(true);
  problems_ += (problems_.empty() ? "" : "; ") + asked.display() + ": " +
               (map ? "it keeps no slots and knows of nobody who does" : map.error().message);
  // Not from inside the callback of the query that has just ended: that one has to be destroyed first.
  timer_.once(limiter::Micros{0}, [this] { ask_next(); });
}

void SlotMapWatch::end(bool has_map) {
  is_asking_ = false;
  is_missing_ = !has_map;  // whoever is missed still is missed again
  why_unknown_ = has_map ? "" : problems_;
  why_unknown_at_ = loop_.now();
  if (has_map) {
    if (std::exchange(has_reported_, false)) log::info("redis cluster: its slots are known again");
  } else {
    ++failures_total_;
    if (!std::exchange(has_reported_, true))
      log::warn("redis cluster: nobody says which node keeps what: {}", problems_);
  }
  schedule();
}

std::string SlotMapWatch::seeds() const {
  std::string urls;
  for (const RedisEndpoint& seed : seeds_) urls += (urls.empty() ? "" : ",") + seed.display();
  return urls;
}

void SlotMapWatch::collect(std::vector<stats::Metric>& metrics) const {
  const auto add = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    metrics.push_back({"redis_cluster_" + std::string(name), stats::Metric::Kind::counter, std::string(help),
                       static_cast<double>(value)});
  };
  add("map_refreshes_total", "Times that a Cluster's nodes were asked which slots they keep.",
      refreshes_total_);
  add("map_failures_total", "Of these, times that nobody answered.", failures_total_);
}

}  // namespace allowd::store
