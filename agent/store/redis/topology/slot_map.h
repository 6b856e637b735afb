// SPDX-License-Identifier: MIT
//
// Which node of a Cluster keeps which slots, as one of them told it: the reply to CLUSTER SLOTS, checked.
//
// Pure. Errors: what is no such reply makes no map.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/result/result.h"
#include "agent/store/redis/codec/resp.h"

namespace allowd::store {

// Where a node is found.
struct NodeAddress {
  std::string host;  // a name or a number; an IPv6 address without brackets
  std::uint16_t port = 0;

  // For people, and to tell nodes apart: "10.0.0.1:6379", "[::1]:6379".
  [[nodiscard]] std::string print() const;
};

class SlotMap {
 public:
  // As many ranges as there may be, each with some replicas and their names.
  static constexpr ReplyReader::Caps kCaps{.outer_elements = 16'384,
                                           .unread_bytes = std::size_t{16} * 1024 * 1024};

  // `asked` is the host that sent the reply: a node that knows no address of its own is found there.
  // A node of which only an unknown name is told ("?") keeps nothing, as far as can be said.
  [[nodiscard]] static Result<SlotMap> read(const redisReply& reply, std::string_view asked);

  // Whoever may be asked about keys in that slot; null: nobody keeps it.
  [[nodiscard]] const NodeAddress* find(std::uint16_t slot) const;

 private:
  struct Range {
    std::uint16_t first = 0;
    std::uint16_t last = 0;
    NodeAddress master;
  };

  std::vector<Range> ranges_;  // in order, apart from each other
};

}  // namespace allowd::store
