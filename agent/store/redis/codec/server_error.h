// SPDX-License-Identifier: MIT
//
// What an error reply means for whoever asked. Told by the codes alone: the text behind them differs from
// version to version, and servers before Redis 7 put the code of what failed inside a script behind
// "ERR Error running script".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace allowd::store {

enum class ServerError : std::uint8_t {
  script_lost,     // NOSCRIPT: nothing was decided; it may be loaded and asked once more
  moved,           // MOVED: another node of the Cluster keeps these keys
  ask,             // ASK: another node keeps them already, the map has not changed yet
  try_again,       // TRYAGAIN: keys of one script are on two nodes while their slot moves
  cluster_down,    // CLUSTERDOWN: nobody keeps these keys
  wrong_server,    // READONLY, MASTERDOWN: not, or no longer, the one that may be written to
  busy,            // LOADING, BUSY: answers later
  no_memory,       // OOM: takes no new values
  cannot_persist,  // MISCONF, NOREPLICAS: takes no writes, until persistence or a replica is back
  not_permitted,   // NOAUTH, WRONGPASS, NOPERM, and commands that a script's user may not call
  other,
};

struct ErrorReply {
  ServerError kind = ServerError::other;
  std::string_view code;  // "OOM", "ERR", ...: at most 32 bytes, in `text`
};

[[nodiscard]] ErrorReply read_error(std::string_view text);

// "MOVED 3999 127.0.0.1:6381" and "ASK ...": where to. An IPv6 address is not in brackets.
struct Redirection {
  std::uint16_t slot = 0;
  std::string host;  // empty: that of the node which answered
  std::uint16_t port = 0;
};
[[nodiscard]] std::optional<Redirection> read_redirection(std::string_view text);

}  // namespace allowd::store
