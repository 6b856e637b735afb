// SPDX-License-Identifier: MIT
#include "agent/io/admin_session.h"

#include <string_view>

namespace allowd::io {

std::size_t AdminSession::serve(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::size_t used = 0;
  last_active_ = loop().now();
  while (!must_pause()) {
    const std::size_t end_of_line = text.find('\n', used);
    std::string_view line = text.substr(used, end_of_line - used);
    if (line.size() > kMaxLineBytes) {
      out().append("error: too_large: a command may have 8192 bytes\n\n");
      has_replied();
      finish();
      break;
    }
    if (end_of_line == std::string_view::npos) break;
    if (line.ends_with('\r')) line.remove_suffix(1);
    used = end_of_line + 1;
    ++open_commands_;
    commands_.run(line, loop().now(), [self = self_](const std::string& reply) {
      if (*self != nullptr) (*self)->answer(reply);
    });
  }
  return used;
}

void AdminSession::answer(const std::string& text) {
  --open_commands_;
  last_active_ = loop().now();
  if (has_ended()) return host().retire(*this);
  out().append(text);
  out().append("\n");
  has_replied();
  host().resume_after_turn(*this);
}

}  // namespace allowd::io
