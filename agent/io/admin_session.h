// SPDX-License-Identifier: MIT
//
// A client on the admin socket: one command per line, one answer each, ended by an empty line.
#pragma once

#include <limits>
#include <memory>
#include <string>

#include "agent/admin/commands.h"
#include "agent/io/session.h"

namespace allowd::io {

class AdminSession final : public Session {
 public:
  static constexpr std::size_t kMaxLineBytes = 8 * 1024;

  AdminSession(loop::Loop& loop, SessionHost& host, admin::Commands& commands)
      : Session(loop, host),
        commands_(commands),
        self_(std::make_shared<AdminSession*>(this)),
        last_active_(loop.now()) {}
  ~AdminSession() override { *self_ = nullptr; }

  [[nodiscard]] std::size_t open_queries() const override { return open_commands_; }
  // Answers carry no ids: one command at a time keeps them in order.
  [[nodiscard]] bool is_busy() const override { return open_commands_ > 0; }
  // Whether it owes its client nothing.
  [[nodiscard]] bool is_idle() const { return !has_ended() && !is_busy() && !has_unsent(); }
  // When its client connected, sent something or was answered last.
  [[nodiscard]] loop::SteadyTime last_active() const { return last_active_; }

 private:
  std::size_t serve(std::span<const std::byte> bytes) override;
  // An answer is as long as the configuration makes it, and there is one at a time.
  [[nodiscard]] std::size_t most_unsent_bytes() const override {
    return std::numeric_limits<std::size_t>::max();
  }
  void answer(const std::string& text);

  admin::Commands& commands_;
  std::shared_ptr<AdminSession*> self_;  // null once it is gone: an answer may come later
  std::size_t open_commands_ = 0;
  loop::SteadyTime last_active_;
};

}  // namespace allowd::io
