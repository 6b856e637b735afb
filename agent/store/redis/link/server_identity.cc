// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/server_identity.h"

#include <charconv>

namespace allowd::store {
namespace {

// What stands behind the name at the beginning of a line, or nothing.
std::string_view field(std::string_view info, std::string_view name) {
  for (std::size_t begin = 0; begin < info.size();) {
    const std::size_t end = info.find("\r\n", begin);
    const std::string_view line = info.substr(begin, end == std::string_view::npos ? end : end - begin);
    if (line.size() > name.size() && line[name.size()] == ':' && line.substr(0, name.size()) == name)
      return line.substr(name.size() + 1);
    if (end == std::string_view::npos) break;
    begin = end + 2;
  }
  return {};
}

std::string_view info_in(const Reply& reply) {
  return reply != nullptr && reply->type == REDIS_REPLY_STRING ? text_of(reply) : std::string_view();
}

}  // namespace

void ServerIdentity::read(const Reply& info) {
  const std::string_view text = info_in(info);
  if (const auto found = field(text, "run_id"); !found.empty()) run_id = found;
  if (const auto found = field(text, "master_replid"); !found.empty()) replication_id = found;
  if (const auto found = field(text, "redis_version"); !found.empty())
    std::from_chars(found.data(), found.data() + found.size(), major_version);
}

bool ServerIdentity::is_still_master(const Reply& info) const {
  const std::string_view text = info_in(info);
  return is_known() && field(text, "role") == "master" && field(text, "master_replid") == replication_id;
}

}  // namespace allowd::store
