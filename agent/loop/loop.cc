// SPDX-License-Identifier: MIT
#include "agent/loop/loop.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <initializer_list>
#include <utility>

namespace allowd::loop {
namespace {

// Of the process, as libuv's threads are.
std::atomic<bool> has_left_thread = false;

template <class Handle>
void close_and_delete(Handle* handle) {
  uv_close(reinterpret_cast<uv_handle_t*>(handle),
           [](uv_handle_t* closed) { delete reinterpret_cast<Handle*>(closed); });
}

Loop& owner_of(void* handle) {
  return *static_cast<Loop*>(uv_handle_get_data(static_cast<uv_handle_t*>(handle)));
}

Micros processor_time_of_thread() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::duration_cast<Micros>(std::chrono::seconds{used.tv_sec} +
                                            std::chrono::nanoseconds{used.tv_nsec});
}

}  // namespace

Loop::Loop()
    : loop_(std::make_unique<uv_loop_t>()),
      read_buffer_(kHeadroomBytes + kReadBytes),
      turn_start_(new uv_prepare_t),
      turn_end_(new uv_check_t),
      waker_(new uv_timer_t),
      hurry_(new uv_idle_t) {
  if (uv_loop_init(loop_.get()) != 0) {
    std::fputs("allowd: cannot create an event loop\n", stderr);
    std::abort();  // neither memory nor file descriptors: nothing can be done
  }
  uv_prepare_init(raw(), turn_start_);
  uv_check_init(raw(), turn_end_);
  uv_timer_init(raw(), waker_);
  uv_idle_init(raw(), hurry_);
  turn_start_->data = turn_end_->data = waker_->data = hurry_->data = this;
  uv_prepare_start(turn_start_, [](uv_prepare_t* handle) { owner_of(handle).begin_wait(); });
  uv_check_start(turn_end_, [](uv_check_t* handle) { owner_of(handle).end_turn(); });
  // None of these keeps the loop alive.
  for (void* handle : std::initializer_list<void*>{turn_start_, turn_end_, waker_, hurry_}) {
    uv_unref(static_cast<uv_handle_t*>(handle));
  }
}

bool Loop::has_left_a_thread() { return has_left_thread.load(); }

Loop::~Loop() {
  close_and_delete(turn_start_);
  close_and_delete(turn_end_);
  close_and_delete(waker_);
  close_and_delete(hurry_);
  constexpr int kTurnsToClose = 100;
  for (int turn = 0; turn < kTurnsToClose; ++turn) {
    uv_run(raw(), UV_RUN_NOWAIT);
    if (uv_loop_close(raw()) == 0) return;
  }
  if (loop_->active_reqs.count > 0) {
    // A thread of libuv's hangs in a name look-up, for which the loop has to be there when it ends.
    static_cast<void>(loop_.release());
    has_left_thread.store(true);
    return;
  }
  std::fputs("allowd: a handle was leaked\n", stderr);
  uv_print_all_handles(raw(), stderr);
  std::abort();
}

SteadyTime Loop::exact_now() { return SteadyTime{Micros{static_cast<std::int64_t>(uv_hrtime() / 1000)}}; }

SteadyTime Loop::now() {
  if (!has_now_) {
    now_ = exact_now();
    has_now_ = true;
    if (!busy_since_) busy_since_ = now_;
  }
  return now_;
}

void Loop::begin_wait() {
  has_now_ = false;
  if (!turn_observer_) return;
  const SteadyTime end = exact_now();
  Turn turn{.end = end, .wall = busy_since_ ? end - *busy_since_ : Micros{0}};
  const bool is_first = !processor_read_at_;  // before it the loop did not run
  const bool is_long = turn.wall > kShortTurn;
  if (is_first || is_long || end - *processor_read_at_ > kProcessorReadingAge) {
    const Micros used = processor_time_of_thread();
    if (is_long) turn.processor = std::min(used - processor_at_reading_, turn.wall);
    processor_at_reading_ = used;
    processor_read_at_ = end;
  }
  if (busy_since_ && !is_first) turn_observer_(turn);
  busy_since_.reset();
}

void Loop::end_turn() {
  uv_idle_stop(hurry_);
  if (!busy_since_) busy_since_ = now();
  for (const auto& work : turn_end_work_) work();
  end_round_of_reading();
  has_now_ = false;
}

bool Loop::may_read(std::uint64_t& served_in) {
  const bool was_served = served_in == reading_round_;
  if (was_served && is_round_open_) return false;
  const SteadyTime turn_began = now();
  if (has_read_ && exact_now() - turn_began > kReadingPerTurn) {
    if (!was_served) has_deferred_first_ = true;
    return false;
  }
  served_in = reading_round_;
  has_read_ = true;
  return true;
}

void Loop::end_round_of_reading() {
  // libuv offers ready sockets in the same order turn after turn: the first ones would always be first.
  has_read_ = false;
  is_round_open_ = std::exchange(has_deferred_first_, false);
  if (!is_round_open_) ++reading_round_;
}

void Loop::wake_by(SteadyTime when) {
  if (when >= wake_at_) return;
  wake_at_ = when;
  uv_update_time(raw());
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(when - now());
  // One more, since libuv cuts the current time off to a millisecond and would wake too early.
  const auto wait_ms = static_cast<std::uint64_t>(wait.count() > 0 ? wait.count() + 1 : 1);
  uv_timer_start(
      waker_,
      [](uv_timer_t* handle) {
        // The turn that this starts does the work; see that it does not wait for sockets first.
        Loop& loop = owner_of(handle);
        loop.wake_at_ = SteadyTime::max();
        loop.run_another_turn();
      },
      wait_ms, 0);
}

void Loop::run_another_turn() {
  uv_idle_start(hurry_, [](uv_idle_t*) {});
}

void Loop::run() { uv_run(raw(), UV_RUN_DEFAULT); }

}  // namespace allowd::loop
