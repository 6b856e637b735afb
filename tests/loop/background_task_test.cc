// SPDX-License-Identifier: MIT
#include "agent/loop/background_task.h"

#include <atomic>
#include <memory>
#include <thread>

#include "tests/support/turns.h"

namespace allowd::loop {
namespace {

TEST_CASE("background task: works on another thread, and is done on the loop's") {
  Loop loop;
  BackgroundTask task(loop);
  const auto here = std::this_thread::get_id();
  std::thread::id worked_on, done_on;
  for (int round = 0; round < 2; ++round) {
    bool is_done = false;
    task.start([&] { worked_on = std::this_thread::get_id(); },
               [&] {
                 done_on = std::this_thread::get_id();
                 is_done = true;
               });
    CHECK(task.is_running());
    testing::turn_until(loop, [&] { return is_done; });
    CHECK_FALSE(task.is_running());
    CHECK(worked_on != here);
    CHECK(done_on == here);
  }
}

TEST_CASE("background task: one that is done may start the next") {
  Loop loop;
  BackgroundTask task(loop);
  int done = 0;
  task.start([] {}, [&] { task.start([] {}, [&] { ++done; }); });
  testing::turn_until(loop, [&] { return done == 1; });
}

TEST_CASE("background task: nobody is called once it has gone") {
  Loop loop;
  auto worked = std::make_shared<std::atomic<bool>>(false);
  auto may_go = std::make_shared<std::atomic<bool>>(false);
  bool is_done = false;
  {
    BackgroundTask task(loop);
    task.start(
        [worked, may_go] {
          *worked = true;
          while (!*may_go) std::this_thread::yield();
        },
        [&] { is_done = true; });
    testing::turn_until(loop, [&] { return worked->load(); });
  }
  *may_go = true;
  testing::turn_on(loop, 20);
  CHECK_FALSE(is_done);
}

}  // namespace
}  // namespace allowd::loop
