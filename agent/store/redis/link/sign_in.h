// SPDX-License-Identifier: MIT
//
// Tells a server who we are: HELLO with user, password and name in one, or AUTH where the server does not
// know HELLO (Redis before 6, some proxies).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "agent/store/redis/link/connection.h"

namespace allowd::store {

// Why a server does not let us work.
struct Refusal {
  Error why;
  // It will go on refusing until a person changes something: who we are, or what we may do.
  bool is_lasting = false;
};

// Made of an error reply.
[[nodiscard]] Refusal refusal_of(const Reply& error, std::string_view doing);

// Calls `done` once, with nothing when all is well; never if the connection ends before. An empty user is the
// server's default user; no password: only the name is told.
void sign_in(Connection& connection, const std::string& user, const std::string& password,
             std::function<void(std::optional<Refusal>)> done);

}  // namespace allowd::store
