// SPDX-License-Identifier: MIT
//
// Finds out which permissions a user lacks: Redis refuses a script that may not call a command without saying
// which one.
//
// Each command that the script calls is sent by itself, in a form that does nothing: it asks for what is
// there, or is wrong in a way that is noticed only after the permission was looked at. Nothing is written.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/store/redis/link/connection.h"

namespace allowd::store {

// The names of the commands that the script calls, whatever is configured.
[[nodiscard]] std::vector<std::string_view> commands_of_script();

// Calls `done` with what is missing as ACL rules: "+setrange", "~..." for the key itself; never if the
// connection ends before. `key` is one that the script was refused for.
void find_missing_permissions(Connection& connection, std::string_view key,
                              std::function<void(const std::vector<std::string>&)> done);

}  // namespace allowd::store
