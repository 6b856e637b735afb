// SPDX-License-Identifier: MIT
//
// The event loop, in turns: time is read once per turn, and whoever has gathered work during a turn (batches,
// replies) sends it off at the turn's end.
//
// libuv runs timers before it reads sockets. Deadlines therefore are not timers of ours: they are looked at
// when the turn ends, after everything that had arrived was read. `wake_by` merely makes sure that a turn
// happens.
//
// Threads    One loop, one thread.
// Ownership  Outlives everything that was made on it; its destructor runs what is left of closing handles and
//            aborts if a handle was leaked.
#pragma once

#include <uv.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace allowd::loop {

using Micros = std::chrono::duration<std::int64_t, std::micro>;
using SteadyTime = std::chrono::time_point<std::chrono::steady_clock, Micros>;

// How long one turn held the loop: from the first look at the clock, or the turn's end, after waiting for
// events to the next wait.
struct Turn {
  SteadyTime end;
  Micros wall{0};
  // The processor time of the loop's thread, or zero for a turn of at most kShortTurn. Too high by at most
  // kProcessorReadingAge, never too low.
  Micros processor{0};
};

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  [[nodiscard]] uv_loop_t* raw() { return loop_.get(); }

  // When this turn began (the first time that anybody asked).
  [[nodiscard]] SteadyTime now();
  // The time at this very moment, for what has to be measured within a turn.
  [[nodiscard]] static SteadyTime exact_now();

  // Whether a loop of this process ended while a thread of libuv's still hung in a name look-up. On the usual
  // ways out of a process libuv waits for its threads; std::_Exit does not.
  [[nodiscard]] static bool has_left_a_thread();

  // Runs at the end of every turn, in the order of registration, for as long as the loop lives.
  void at_turn_end(std::function<void()> work) { turn_end_work_.push_back(std::move(work)); }
  // Is told of every turn that anything happened in. One observer; set it before the loop runs.
  void observe_turns(std::function<void(const Turn&)> observer) { turn_observer_ = std::move(observer); }
  static constexpr Micros kShortTurn{1000};
  // Reading a thread's processor time is a system call, too dear for every turn of a busy loop: a turn may be
  // measured from a reading that is so old.
  static constexpr Micros kProcessorReadingAge{250};

  // Makes a turn end no later than about two milliseconds after `when`. Only the earliest wish is kept;
  // whoever still needs to be woken says so again when a turn ends.
  void wake_by(SteadyTime when);

  // The next turn does not wait for anything to happen.
  void run_another_turn();

  void run();
  void stop() { uv_stop(loop_.get()); }

  // Sockets are read from for about this long in a turn; who is ready beyond it waits for the next. So no
  // number of clients, each with little, makes a turn long.
  static constexpr Micros kReadingPerTurn{350};
  // Whether a reader may read now. It keeps `served_in`, 0 at first, from one time to the next: nobody is
  // served twice before everybody who is ready was served once.
  [[nodiscard]] bool may_read(std::uint64_t& served_in);

  // One buffer for all reads: libuv reads synchronously after asking for it. In front of the part that is
  // read into there is room to put an unfinished message of the same stream.
  static constexpr std::size_t kHeadroomBytes = 64 * 1024;
  static constexpr std::size_t kReadBytes = 32 * 1024;
  [[nodiscard]] std::span<char> read_buffer() { return read_buffer_; }

 private:
  void begin_wait();
  void end_turn();
  void end_round_of_reading();

  std::unique_ptr<uv_loop_t> loop_;
  std::vector<char> read_buffer_;
  std::vector<std::function<void()>> turn_end_work_;
  uv_prepare_t* turn_start_;
  uv_check_t* turn_end_;
  uv_timer_t* waker_;
  uv_idle_t* hurry_;  // active for a turn that must not wait for sockets
  SteadyTime now_{};
  bool has_now_ = false;
  std::function<void(const Turn&)> turn_observer_;
  std::optional<SteadyTime> busy_since_;  // none while the loop waits
  std::optional<SteadyTime> processor_read_at_;
  Micros processor_at_reading_{0};
  SteadyTime wake_at_ = SteadyTime::max();
  std::uint64_t reading_round_ = 1;
  bool has_read_ = false;            // in this turn
  bool is_round_open_ = false;       // some had to wait in a turn of this round
  bool has_deferred_first_ = false;  // in this turn, one that was not served in this round
};

}  // namespace allowd::loop
