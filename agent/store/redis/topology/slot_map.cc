// SPDX-License-Identifier: MIT
#include "agent/store/redis/topology/slot_map.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "agent/store/redis/topology/key_groups.h"

namespace allowd::store {
namespace {

constexpr std::size_t kMaxHostBytes = 255;  // of a name in DNS
constexpr std::string_view kUnknownName = "?";

Error bad(std::string_view what) {
  return {Error::Code::system, "the answer to CLUSTER SLOTS is malformed: " + std::string(what)};
}

bool is_list(const redisReply& reply, std::size_t least) {
  return reply.type == REDIS_REPLY_ARRAY && reply.elements >= least;
}

std::optional<std::uint16_t> number_in(const redisReply& reply, std::uint32_t end) {
  if (reply.type != REDIS_REPLY_INTEGER || reply.integer < 0 || reply.integer >= end) return std::nullopt;
  return static_cast<std::uint16_t>(reply.integer);
}

// Host and port, then what does not matter here: the node's id, and what else is known of it.
Result<NodeAddress> read_node(const redisReply& node, std::string_view asked) {
  if (!is_list(node, 2)) return bad("a node is a list");
  const redisReply& host = *node.element[0];
  const auto port = number_in(*node.element[1], std::numeric_limits<std::uint16_t>::max() + 1U);
  if (!port || *port == 0) return bad("a node has a port");
  NodeAddress address{"", *port};
  if (host.type == REDIS_REPLY_STRING || host.type == REDIS_REPLY_STATUS) {
    address.host.assign(host.str, static_cast<std::size_t>(host.len));
  } else if (host.type != REDIS_REPLY_NIL) {
    return bad("a node's host is a text");
  }
  if (address.host.size() > kMaxHostBytes) return bad("a node's host is too long");
  const bool is_plain =
      std::all_of(address.host.begin(), address.host.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!is_plain) return bad("a node's host is printable");
  if (address.host.empty()) address.host = asked;
  return address;
}

}  // namespace

std::string NodeAddress::print() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<SlotMap> SlotMap::read(const redisReply& reply, std::string_view asked) {
  if (!is_list(reply, 0)) return bad("it is a list");
  SlotMap map;
  for (std::size_t i = 0; i < reply.elements; ++i) {
    const redisReply& range = *reply.element[i];
    if (!is_list(range, 3)) return bad("a range has two ends and a node");
    const auto first = number_in(*range.element[0], kSlots), last = number_in(*range.element[1], kSlots);
    if (!first || !last || *first > *last) return bad("a range lies within 16384 slots");
    auto master = read_node(*range.element[2], asked);
    if (!master) return std::move(master.error());
    if (master->host != kUnknownName) map.ranges_.push_back({*first, *last, *std::move(master)});
  }
  std::sort(map.ranges_.begin(), map.ranges_.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  for (std::size_t i = 1; i < map.ranges_.size(); ++i) {
    if (map.ranges_[i].first <= map.ranges_[i - 1].last) return bad("ranges overlap");
  }
  return map;
}

const NodeAddress* SlotMap::find(std::uint16_t slot) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), slot,
                       [](std::uint16_t wanted, const Range& range) { return wanted < range.first; });
  if (after == ranges_.begin()) return nullptr;
  const Range& range = *std::prev(after);
  return slot <= range.last ? &range.master : nullptr;
}

}  // namespace allowd::store
