// SPDX-License-Identifier: MIT
#include "agent/stats/hot_keys.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace allowd::stats {

void HotKeys::Window::clear() {
  queries.clear();
  refusals.clear();
}

HotKeys::HotKeys() : current_(std::make_unique<Window>()), previous_(std::make_unique<Window>()) {}

void HotKeys::turn_over(Time now) {
  if (!first_) {
    first_ = now;
    window_end_ = now + kWindow;
    return;
  }
  const auto skipped = (now - window_end_) / kWindow;  // windows in which nothing was asked
  std::swap(current_, previous_);
  current_->clear();
  if (skipped > 0) previous_->clear();
  window_end_ += kWindow * (skipped + 1);
}

HotKeys::Asked HotKeys::count_query(const Subject& subject, Time now) {
  window_at(now).queries.count(subject.id, subject.limit, subject.key);
  return {subject.id, KeptName(subject.key)};
}

void HotKeys::count_refusal(const KeptName& limit, const Asked& asked, Time now) {
  window_at(now).refusals.count(asked.id, limit, asked.key);
}

HotKeys::Report HotKeys::report(By by, std::size_t rows, Time now) const {
  Report report;
  if (!first_) return report;
  const Window* newer = current_.get();
  const Window* older = previous_.get();
  Time start = window_end_ - kWindow;  // of the newer
  if (now >= window_end_) {            // nothing was counted since, so nobody has turned over
    const auto skipped = (now - window_end_) / kWindow;
    older = skipped > 0 ? nullptr : newer;
    newer = nullptr;
    start += kWindow * (skipped + 1);
  }
  report.span = std::max(Time::duration{0}, now - std::max(*first_, start - kWindow));

  struct Side {
    const HeavyHitters* sketch;
    std::uint64_t floor;
  };
  std::vector<Side> sides;
  for (const Window* window : {newer, older}) {
    if (window == nullptr) continue;
    const HeavyHitters& sketch = by == By::queries ? window->queries : window->refusals;
    sides.push_back({&sketch, sketch.floor()});
    report.total += sketch.total();
    report.bound += sketch.floor();
  }
  struct Sum {
    std::uint64_t count = 0;
    std::uint64_t error = 0;
    const KeptName* limit;
    const KeptName* key;
  };
  std::vector<Sum> sums;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    for (std::size_t place = 0; place < sides[i].sketch->size(); ++place) {
      const HeavyHitters::Entry entry = sides[i].sketch->entry(place);
      Sum sum{entry.count, entry.error, &entry.limit, &entry.key};
      bool is_seen = false;
      for (std::size_t j = 0; j < sides.size(); ++j) {
        if (j == i) continue;
        const auto there = sides[j].sketch->find(entry.id);
        is_seen = is_seen || (there && j < i);
        sum.count += there ? sides[j].sketch->entry(*there).count : sides[j].floor;
        sum.error += there ? sides[j].sketch->entry(*there).error : sides[j].floor;
      }
      if (!is_seen) sums.push_back(sum);
    }
  }
  // Of equal counts, the surer first; then by name, so that two reports of the same look the same.
  const auto order = [](const Sum& a, const Sum& b) {
    return std::make_tuple(b.count, a.error, a.limit->kept(), a.key->kept()) <
           std::make_tuple(a.count, b.error, b.limit->kept(), b.key->kept());
  };
  const auto end = sums.begin() + static_cast<std::ptrdiff_t>(std::min(rows, sums.size()));
  std::partial_sort(sums.begin(), end, sums.end(), order);
  for (auto sum = sums.begin(); sum != end; ++sum)
    report.rows.push_back({sum->count, sum->error, *sum->limit, *sum->key});
  return report;
}

}  // namespace allowd::stats
