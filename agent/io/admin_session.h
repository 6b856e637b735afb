// SPDX-License-Identifier: MIT
//
// A client on the admin socket: one command per line, one answer each, ended by an empty line.
#pragma once

#include <memory>
#include <string>

#include "agent/admin/commands.h"
#include "agent/io/session.h"

namespace allowd::io {

class AdminSession final : public Session {
 public:
  static constexpr std::size_t kMaxLineBytes = 8 * 1024;

  AdminSession(loop::Loop& loop, SessionHost& host, admin::Commands& commands)
      : Session(loop, host), commands_(commands), self_(std::make_shared<AdminSession*>(this)) {}
  ~AdminSession() override { *self_ = nullptr; }

  [[nodiscard]] std::size_t open_queries() const override { return open_commands_; }
  // Answers carry no ids: one command at a time keeps them in order.
  [[nodiscard]] bool is_busy() const override { return open_commands_ > 0; }

 private:
  std::size_t serve(std::span<const std::byte> bytes) override;
  void answer(const std::string& text);

  admin::Commands& commands_;
  std::shared_ptr<AdminSession*> self_;  // null once it is gone: an answer may come later
  std::size_t open_commands_ = 0;
};

}  // namespace allowd::io
