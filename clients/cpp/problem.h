// SPDX-License-Identifier: MIT
//
// Why a call got no proper answer.
#pragma once

#include <cstdint>
#include <string>

namespace allowd::client {

struct Problem {
  enum class Kind : std::uint8_t {
    no_agent,     // nobody listens on the socket, or the connection broke
    timed_out,    // the deadline passed, or the agent is too busy to accept
    suspended,    // not even tried: three calls in a row timed out within the last second
    agent_error,  // the agent answered an error: `code` and `text`
    bad_reply,    // what came back is not the protocol
  };
  Kind kind = Kind::no_agent;
  std::string code;  // of agent_error
  std::string text;

  // True for the caller's mistakes: asking again gives the same. False: the fail policy may decide.
  [[nodiscard]] bool is_callers_mistake() const {
    return kind == Kind::agent_error &&
           (code == "bad_request" || code == "unknown_method" || code == "unknown_limit" ||
            code == "too_large" || code == "forbidden");
  }
};

}  // namespace allowd::client
