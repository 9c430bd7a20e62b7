#include "ring/engine/written_rows.hpp"

#include <algorithm>

namespace attend::ring {

std::vector<KeyRange> WrittenRows::take(std::int64_t begin, std::int64_t end) {
  if (begin >= end) return {};
  std::vector<KeyRange> fresh, all;
  KeyRange joined = {begin, end};
  std::int64_t at = begin;  // every row before this one has a value or is listed in `fresh`
  for (const KeyRange& w : written_) {
    if (w.end < begin || w.begin > end) {
      all.push_back(w);
      continue;
    }
    if (at < w.begin) fresh.push_back({at, w.begin});
    at = std::max(at, w.end);
    joined = {std::min(joined.begin, w.begin), std::max(joined.end, w.end)};
  }
  if (at < end) fresh.push_back({at, end});
  all.push_back(joined);
  std::ranges::sort(all, {}, &KeyRange::begin);
  written_ = std::move(all);
  return fresh;
}

}  // namespace attend::ring
