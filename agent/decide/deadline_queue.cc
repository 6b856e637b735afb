// SPDX-License-Identifier: MIT
#include "agent/decide/deadline_queue.h"

#include <cassert>

namespace allowd::decide {

void DeadlineQueue::place(std::size_t position, const Entry& entry) {
  heap_[position] = entry;
  position_of_[entry.slot] = static_cast<std::uint32_t>(position);
}

void DeadlineQueue::sift_up(std::size_t position, const Entry& entry) {
  while (position > 0) {
    const std::size_t parent = (position - 1) / 2;
    if (heap_[parent].deadline <= entry.deadline) break;
    place(position, heap_[parent]);
    position = parent;
  }
  place(position, entry);
}

void DeadlineQueue::sift_down(std::size_t position, const Entry& entry) {
  while (true) {
    std::size_t child = 2 * position + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1].deadline < heap_[child].deadline) ++child;
    if (entry.deadline <= heap_[child].deadline) break;
    place(position, heap_[child]);
    position = child;
  }
  place(position, entry);
}

void DeadlineQueue::push(Slot slot, store::SteadyTime deadline) {
  if (slot >= position_of_.size()) position_of_.resize(std::size_t{slot} + 1);
  heap_.emplace_back();
  sift_up(heap_.size() - 1, {deadline, slot});
}

void DeadlineQueue::remove(Slot slot) {
  const std::size_t position = position_of_[slot];
  assert(position < heap_.size() && heap_[position].slot == slot);
  const Entry last = heap_.back();
  heap_.pop_back();
  if (position == heap_.size()) return;
  if (position > 0 && last.deadline < heap_[(position - 1) / 2].deadline) {
    sift_up(position, last);
  } else {
    sift_down(position, last);
  }
}

}  // namespace allowd::decide
