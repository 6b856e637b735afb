// SPDX-License-Identifier: MIT
//
// Which of many waiting queries expires next: a binary heap that knows where each query stands in it, so that
// one that was answered leaves at once.
//
// Queries are named by small numbers, their slots.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/store/store.h"

namespace allowd::decide {

class DeadlineQueue {
 public:
  using Slot = std::uint32_t;

  // Expects a slot that is not queued.
  void push(Slot slot, store::SteadyTime deadline);
  // Takes a queued slot out.
  void remove(Slot slot);

  [[nodiscard]] bool is_empty() const { return heap_.empty(); }
  // Both expect !is_empty().
  [[nodiscard]] store::SteadyTime next_deadline() const { return heap_.front().deadline; }
  [[nodiscard]] Slot next() const { return heap_.front().slot; }
  [[nodiscard]] std::size_t size() const { return heap_.size(); }

 private:
  struct Entry {
    store::SteadyTime deadline;
    Slot slot;
  };

  void place(std::size_t position, const Entry& entry);
  void sift_up(std::size_t position, const Entry& entry);
  void sift_down(std::size_t position, const Entry& entry);

  std::vector<Entry> heap_;
  std::vector<std::uint32_t> position_of_;  // by slot
};

}  // namespace allowd::decide
