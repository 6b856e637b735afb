// SPDX-License-Identifier: MIT
//
// The commands of the admin socket: a line in, text out.
//
// Errors     A command that fails answers one line, "error: code: text".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agent/admin/reporter.h"
#include "agent/decide/decider.h"

namespace allowd::admin {

class Commands {
 public:
  // Takes the whole answer: lines, each ended by a newline, none of them empty.
  using Reply = std::function<void(std::string)>;

  // Loads the configuration anew and calls back once, with lines or with an error.
  using Reload = std::function<void(std::function<void(const Result<std::string>&)>)>;

  Commands(const Reporter& reporter, decide::LimitTable& limits, decide::Decider& decider, Reload reload);

  // Runs one line. `reply` is called once, before this returns or when a question to the store is answered.
  void run(std::string_view line, store::SteadyTime now, const Reply& reply);

 private:
  using Words = std::vector<std::string>;
  struct Command {
    std::string_view name;
    std::string_view arguments;  // for `help`
    std::string_view purpose;
    std::size_t least_words;  // arguments that must and may stand
    std::size_t most_words;
    void (Commands::*run)(const Words& arguments, store::SteadyTime now, const Reply& reply);
  };
  static const std::vector<Command>& table();

  void help(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void ping(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void info(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void stats(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void top(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void limits(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void key(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void reset(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void shards(const Words& arguments, store::SteadyTime now, const Reply& reply);
  void reload(const Words& arguments, store::SteadyTime now, const Reply& reply);

  const Reporter& reporter_;
  decide::LimitTable& limits_;
  decide::Decider& decider_;
  Reload reload_;
  std::unordered_map<const void*, std::shared_ptr<void>> open_questions_;  // that wait for the store
};

}  // namespace allowd::admin
