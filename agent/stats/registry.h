// SPDX-License-Identifier: MIT
//
// Everything that the agent counts about its own work. Stores and sessions count for themselves and are asked
// as MetricSources when somebody looks.
//
// Ownership  Counters handed out live as long as the registry.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/stats/histogram.h"
#include "agent/stats/hot_keys.h"
#include "agent/stats/metric.h"
#include "protocol/decision.h"

namespace allowd::stats {

// Decisions of one limit and tier.
class DecisionCounters {
 public:
  DecisionCounters(std::string_view limit, std::string_view tier) : limit_(limit), tier_(tier) {}

  void add(protocol::Verdict verdict, protocol::Source source) {
    ++counts_[static_cast<std::size_t>(verdict)][static_cast<std::size_t>(source)];
  }
  [[nodiscard]] std::uint64_t count(protocol::Verdict verdict, protocol::Source source) const {
    return counts_[static_cast<std::size_t>(verdict)][static_cast<std::size_t>(source)];
  }
  [[nodiscard]] const std::string& limit() const { return limit_; }
  [[nodiscard]] const std::string& tier() const { return tier_; }

 private:
  std::string limit_;
  std::string tier_;
  std::array<std::array<std::uint64_t, protocol::kSources>, protocol::kVerdicts> counts_{};
};

class Registry {
 public:
  // The counters of that limit and tier, made on first use. Labels must come from the config, never from
  // keys.
  DecisionCounters& decisions_of(std::string_view limit, std::string_view tier);
  // How long queries took, by who decided them.
  [[nodiscard]] Histogram& latency(protocol::Source source) {
    return latency_[static_cast<std::size_t>(source)];
  }

  // Which keys are asked about and refused most.
  [[nodiscard]] HotKeys& hot_keys() { return hot_keys_; }
  [[nodiscard]] const HotKeys& hot_keys() const { return hot_keys_; }

  void add_source(const MetricSource& source) { sources_.push_back(&source); }

  [[nodiscard]] const std::deque<DecisionCounters>& decisions() const { return decisions_; }
  [[nodiscard]] const Histogram& latency(protocol::Source source) const {
    return latency_[static_cast<std::size_t>(source)];
  }
  // What all sources say at this moment.
  [[nodiscard]] std::vector<Metric> metrics() const;

 private:
  std::deque<DecisionCounters> decisions_;  // never move: others keep references
  std::map<std::pair<std::string, std::string>, DecisionCounters*> by_label_;
  std::array<Histogram, protocol::kSources> latency_;
  HotKeys hot_keys_;
  std::vector<const MetricSource*> sources_;
};

}  // namespace allowd::stats
