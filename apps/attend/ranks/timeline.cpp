#include "ranks/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace attend::cli {
namespace {

using Interval = std::pair<double, double>;
using ring::Activity;
using ring::Span;

/// Sorts intervals, and merges those that overlap or touch.
std::vector<Interval> joined(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> all;
  for (const Interval& i : intervals) {
    if (!all.empty() && i.first <= all.back().second) {
      all.back().second = std::max(all.back().second, i.second);
    } else {
      all.push_back(i);
    }
  }
  return all;
}

double length(const std::vector<Interval>& intervals) {
  double sum = 0;
  for (const Interval& i : intervals) sum += i.second - i.first;
  return sum;
}

/// Returns the total length of the intersection of `intervals` and `others`. Both lists must be the result of joined().
double overlap(const std::vector<Interval>& intervals, const std::vector<Interval>& others) {
  double sum = 0;
  for (const Interval& a : intervals) {
    for (const Interval& b : others) {
      sum += std::max(0.0, std::min(a.second, b.second) - std::max(a.first, b.first));
    }
  }
  return sum;
}

}  // namespace

std::vector<StepTimes> step_times(const std::vector<Span>& spans) {
  std::map<int, std::vector<Interval>> compute, exchange;
  std::vector<Interval> all_compute;
  for (const Span& s : spans) {
    if (s.activity == Activity::kCopy) continue;
    (s.activity == Activity::kCompute ? compute : exchange)[s.step].emplace_back(s.begin_ms, s.end_ms);
    if (s.activity == Activity::kCompute) all_compute.emplace_back(s.begin_ms, s.end_ms);
  }
  all_compute = joined(all_compute);
  std::map<int, StepTimes> steps;
  for (const auto& [step, intervals] : compute) steps[step].compute = length(joined(intervals));
  for (const auto& [step, intervals] : exchange) {
    const std::vector<Interval> travelled = joined(intervals);
    steps[step].exchange = length(travelled);
    steps[step].exposed = steps[step].exchange - overlap(travelled, all_compute);
  }
  std::vector<StepTimes> list;
  for (auto& [step, times] : steps) {
    times.step = step;
    list.push_back(times);
  }
  return list;
}

std::vector<StepTimes> slowest(const std::vector<std::vector<StepTimes>>& ranks) {
  std::map<int, StepTimes> steps;
  for (const std::vector<StepTimes>& rank : ranks) {
    for (const StepTimes& t : rank) {
      StepTimes& most = steps[t.step];
      most = {t.step, std::max(most.compute, t.compute), std::max(most.exchange, t.exchange),
              std::max(most.exposed, t.exposed)};
    }
  }
  std::vector<StepTimes> list;
  for (const auto& [step, times] : steps) list.push_back(times);
  return list;
}

std::string timeline_text(const std::vector<std::vector<Span>>& ranks, int columns) {
  double end = 0;
  for (const std::vector<Span>& spans : ranks) {
    for (const Span& s : spans) end = std::max(end, s.end_ms);
  }
  if (end <= 0) return "";
  const auto column = [&](double ms) {
    return static_cast<std::size_t>(std::clamp(static_cast<int>(ms / end * columns), 0, columns - 1));
  };
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::string compute(static_cast<std::size_t>(columns), ' '), exchange = compute;
    for (const Span& s : ranks[rank]) {
      if (s.activity == Activity::kCopy) continue;  // copies are too short to be drawn
      std::string& bar = s.activity == Activity::kCompute ? compute : exchange;
      const char mark = s.activity == Activity::kCompute ? static_cast<char>('0' + s.step % 10) : '-';
      for (std::size_t at = column(s.begin_ms); at <= column(s.end_ms); ++at) bar[at] = mark;
    }
    text += fmt::format("rank {:<3} |{}|\n         |{}|\n", rank, compute, exchange);
  }
  return text + fmt::format("          0{:>{}.3f} ms\n", end, columns - 1);
}

}  // namespace attend::cli
