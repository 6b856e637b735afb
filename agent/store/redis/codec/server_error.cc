// SPDX-License-Identifier: MIT
#include "agent/store/redis/codec/server_error.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace allowd::store {
namespace {

constexpr std::size_t kMaxCodeBytes = 32;
constexpr std::uint16_t kSlots = 16'384;

constexpr std::array<std::pair<std::string_view, ServerError>, 16> kKinds{{
    {"NOSCRIPT", ServerError::script_lost},
    {"MOVED", ServerError::moved},
    {"ASK", ServerError::ask},
    {"TRYAGAIN", ServerError::try_again},
    {"CLUSTERDOWN", ServerError::cluster_down},
    {"READONLY", ServerError::wrong_server},
    {"MASTERDOWN", ServerError::wrong_server},
    {"LOADING", ServerError::busy},
    {"BUSY", ServerError::busy},
    {"OOM", ServerError::no_memory},
    {"MISCONF", ServerError::cannot_persist},
    {"NOREPLICAS", ServerError::cannot_persist},
    {"NOAUTH", ServerError::not_permitted},
    {"WRONGPASS", ServerError::not_permitted},
    {"NOPERM", ServerError::not_permitted},
    {"WRONGTYPE", ServerError::other},
}};

std::string_view first_word(std::string_view text) { return text.substr(0, text.find(' ')); }

// The code of what a script called, where the server reports the script's failure instead: "... -OOM
// command".
std::string_view code_within(std::string_view text) {
  for (std::size_t at = text.find(" -"); at != std::string_view::npos; at = text.find(" -", at + 1)) {
    const std::string_view word = first_word(text.substr(at + 2));
    const bool is_code =
        !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
    if (is_code) return word;
  }
  return {};
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

}  // namespace

ErrorReply read_error(std::string_view text) {
  constexpr std::string_view kScriptFailed = "ERR Error running script";
  std::string_view code = first_word(text);
  if (text.starts_with(kScriptFailed)) {
    if (const std::string_view inner = code_within(text); !inner.empty()) code = inner;
  }
  code = code.substr(0, kMaxCodeBytes);
  const auto known =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& kind) { return kind.first == code; });
  if (known != kKinds.end()) return {known->second, code};
  // Said by a script's call alone, and by no code: up to Redis 7.0, and later.
  const auto says = [&](std::string_view words) { return text.find(words) != std::string_view::npos; };
  const bool is_refused_call =
      code == "ERR" && (says("can't run this command") || says("ACL failure in script"));
  return {is_refused_call ? ServerError::not_permitted : ServerError::other, code};
}

std::optional<Redirection> read_redirection(std::string_view text) {
  const std::size_t slot_at = text.find(' ');
  if (slot_at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(slot_at + 1);
  const std::size_t address_at = text.find(' ');
  if (address_at == std::string_view::npos) return std::nullopt;
  const std::string_view address = first_word(text.substr(address_at + 1));
  const std::size_t colon = address.rfind(':');
  Redirection redirection;
  if (colon == std::string_view::npos || !read_number(text.substr(0, address_at), redirection.slot) ||
      redirection.slot >= kSlots || !read_number(address.substr(colon + 1), redirection.port) ||
      redirection.port == 0) {
    return std::nullopt;
  }
  redirection.host = address.substr(0, colon);
  return redirection;
}

}  // namespace allowd::store
