// SPDX-License-Identifier: MIT
//
// Loads the configuration anew: read and checked aside, then swapped in as a whole, or not at all.
//
// Limits change at once; queries in flight finish under the definitions that they began with, and live state
// keeps its use. Sockets and stores are not touched: what has changed about them is said to need a restart.
//
// Errors     A bad file changes nothing. It is logged and reported in `info` until a reload succeeds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent/admin/config_status.h"
#include "agent/config/config.h"
#include "agent/decide/limit_table.h"
#include "agent/loop/background_task.h"

namespace allowd::reload {

class Reloader {
 public:
  // Gets lines that say what has become of the reload, or the error.
  using Done = std::function<void(const Result<std::string>&)>;

  // `path` "": there is no file. `running` is what the agent was started with.
  Reloader(loop::Loop& loop, std::string path, config::Config running, decide::LimitTable& limits,
           admin::ConfigStatus& status);

  // Calls `done` later, once. A reload that is asked for while one is under way follows it.
  void reload(Done done);

 private:
  void start();
  void finish(Result<config::Config>& loaded);
  Result<std::string> apply(Result<config::Config>& loaded);

  std::string path_;
  config::Config running_;
  decide::LimitTable& limits_;
  admin::ConfigStatus& status_;
  std::vector<Done> waiting_;  // for the next reload
  std::vector<Done> served_;   // by the one under way
  loop::BackgroundTask task_;
};

// The keys of [agent] and [redis] that differ and take effect at a restart only.
[[nodiscard]] std::vector<std::string> changes_for_restart(const config::Config& running,
                                                           const config::Config& loaded);

}  // namespace allowd::reload
