// SPDX-License-Identifier: MIT
//
// One random history of a fleet: hosts that share a store over a network, each with a clock of its own error,
// and everything that goes wrong. A judge stands beside it who knows the store's true state at all times.
//
// What he holds against it, each time with the seed that shows it again:
//
//   promise 1   the store charged no more than the limit's rate and the clocks' errors allow
//   promise 2   what a host refused alone, the store would have refused at that moment too, with no shorter
//               wait: but for a while after the budget was raised from outside, and what is held back
//   promise 3   each query is answered exactly once
//   promise 7   all that was charged was granted to somebody, given back once, or lost with a connection
#pragma once

#include <cstdint>
#include <string>

namespace allowd::sim {

struct Findings {
  std::string problem;  // empty: none
  std::int64_t queries = 0;
  std::int64_t local_refusals = 0;  // judged
  std::int64_t excused = 0;         // of these, that the store would have let pass, after a raise
  std::int64_t held = 0;            // of these, held back or crowded out
  std::int64_t granted = 0;
  std::int64_t given_back = 0;  // permits
  std::int64_t bounds_checked = 0;
};

[[nodiscard]] Findings live_through(std::uint64_t seed);

}  // namespace allowd::sim
