// Implements ScoreRules::has_overflowed, which distinguishes an overflowed row of scores from a row that sees no key.
// Included once per SIMD target.
#if defined(ATTEND_CPU_SCORE_OVERFLOW_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_SCORE_OVERFLOW_INL
#undef ATTEND_CPU_SCORE_OVERFLOW_INL
#else
#define ATTEND_CPU_SCORE_OVERFLOW_INL
#endif

#include <algorithm>
#include <limits>

#include "cpu/score-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

inline bool ScoreRules::has_overflowed(std::int64_t row, float row_max) const {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  if (function_) return false;  // with a function, a score of -inf means that the function hides the key
  if (!(row_max <= kLowest) || (row_max == kLowest && !p_.bias)) return false;
  const KeyRange seen = window_.row(row);
  if (tiles_.see_all()) return keeps_any(row, row_max, seen);
  for (const core::SeenTiles& some : tiles_.row(row / core::kMaskTile)) {
    const std::int64_t first = some.begin * core::kMaskTile, r = row % core::kMaskTile;
    const KeyRange keys = {std::max(seen.begin, first), std::min(seen.end, some.end * core::kMaskTile)};
    if (keys.empty()) continue;
    if (some.pattern == core::kAllSeen) {
      if (keeps_any(row, row_max, keys)) return true;
      continue;
    }
    if (!tiles_.sees_any(some.pattern, r)) continue;
    const core::TilePattern& pattern = tiles_.pattern(some.pattern);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const bool sees = (pattern[static_cast<std::size_t>(j - first)] >> r & 1) != 0;
      if (sees && keeps_any(row, row_max, {j, j + 1})) return true;
    }
  }
  return false;
}

/// Returns whether one of the keys in `seen` is neither masked nor hidden by its bias.
inline bool ScoreRules::keeps_any(std::int64_t row, float row_max, KeyRange seen) const {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  if (!p_.mask && !p_.bias) return seen.begin < seen.end;
  const auto* keep =
      p_.mask ? static_cast<const std::uint8_t*>(core::element(*p_.mask, s_.batch, head_, row)) : nullptr;
  if (!p_.bias) return std::any_of(keep + seen.begin, keep + seen.end, [](std::uint8_t x) { return x != 0; });
  // If the row maximum is the lowest float, the scores may have overflowed, or the biases may be near the lowest float.
  // Only keys with a higher bias prove an overflow.
  const Vector least_bias = hn::Set(kFloats, row_max == kLowest ? kLowest / 2 : kLowest);
  return with_type(core::element(*p_.bias, s_.batch, head_, row), p_.bias->dtype, [&](const auto* bias) HWY_ATTR {
    for (std::int64_t j = seen.begin; j < seen.end; j += kLanes) {
      const std::int64_t count = std::min<std::int64_t>(kLanes, seen.end - j);
      const auto valid = hn::FirstN(kFloats, static_cast<std::size_t>(count));
      const auto sees = hn::And(hn::Ge(load_partial(bias + j, count), least_bias), valid);
      if (hn::AllFalse(kFloats, sees)) continue;
      if (keep == nullptr) return true;
      for (std::int64_t i = j; i < j + count; ++i) {
        if (keep[i] != 0 && core::load(*p_.bias, s_.batch, head_, row, i) >= hn::GetLane(least_bias)) return true;
      }
    }
    return false;
  });
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
