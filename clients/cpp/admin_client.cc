// SPDX-License-Identifier: MIT
#include "clients/cpp/admin_client.h"

#include "clients/cpp/connection.h"

namespace allowd::client {
namespace {

constexpr std::size_t kMaxAnswerBytes = 64 * 1024 * 1024;

Problem to_problem(std::string_view line) {
  const std::size_t colon = line.find(": ");
  if (colon == std::string_view::npos) return {Problem::Kind::agent_error, std::string(line), ""};
  return {Problem::Kind::agent_error, std::string(line.substr(0, colon)),
          std::string(line.substr(colon + 2))};
}

}  // namespace

std::optional<Problem> run_admin_command(const std::string& socket_path, std::string_view line,
                                         std::chrono::microseconds timeout, std::string& answer) {
  constexpr std::string_view kError = "error: ";
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  Connection connection;
  if (auto problem = connection.connect(socket_path, deadline)) return problem;
  std::size_t sent = 0;
  if (auto problem = connection.write(std::string(line) + "\n", deadline, sent)) return problem;
  while (true) {
    const auto bytes = connection.received();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.ends_with("\n\n")) {
      answer = text.substr(0, text.size() - 1);
      break;
    }
    if (text.size() > kMaxAnswerBytes) return Problem{Problem::Kind::bad_reply, "", "the answer has no end"};
    if (auto problem = connection.read_more(deadline)) return problem;
  }
  if (!answer.starts_with(kError)) return {};
  return to_problem(std::string_view(answer).substr(kError.size(), answer.find('\n') - kError.size()));
}

}  // namespace allowd::client
