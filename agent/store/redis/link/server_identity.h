// SPDX-License-Identifier: MIT
//
// Which server answers, as far as its data goes: what one has granted only means something to the one that
// still has it. A process is told by its `run_id`, a history of data by `master_replid`, which a replica that
// is promoted changes, and a master that is demoted takes over (Redis documentation, "Redis replication").
//
// Pure.
#pragma once

#include <string>
#include <string_view>

#include "agent/store/redis/codec/resp.h"

namespace allowd::store {

// What INFO says; empty or 0 as far as it does not: an ACL may forbid it.
struct ServerIdentity {
  std::string run_id;
  std::string replication_id;
  int major_version = 0;

  // Adds what a reply to INFO says.
  void read(const Reply& info);
  [[nodiscard]] bool is_known() const { return !run_id.empty() && !replication_id.empty(); }
  // For certain; who is not known is nobody else either.
  [[nodiscard]] bool is_same_as(const ServerIdentity& other) const {
    return is_known() && run_id == other.run_id && replication_id == other.replication_id;
  }
  // Whether this reply to INFO replication is of a master with the same history.
  [[nodiscard]] bool is_still_master(const Reply& info) const;
};

}  // namespace allowd::store
