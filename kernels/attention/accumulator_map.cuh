// Applies a block map to accumulators. accumulator_scores.cuh describes the layout of accumulators.
#pragma once

#include "../tiles/accumulator_mask.cuh"
#include "block_map.cuh"
#include "score_rules.cuh"

namespace attend {

// Sets hidden scores to -inf. Line is AccumulatorRow or AccumulatorKey. A tile of the map has 64 columns. The first
// column of the accumulators must be a multiple of 64. If they have fewer than 64 columns, a multiple of their number
// of columns suffices.
template <class Line, int kCount>
__device__ __forceinline__ void hide_unseen(const TileRules<typename Line::Kernel>& rules, float (&s)[kCount],
                                            int thread) {
  if constexpr (has_block_map<typename Line::Kernel>()) {
    constexpr int kColumns = 2 * kCount;
    constexpr int kOfWord = kColumns % 64 == 0 ? 64 : kColumns % 32 == 0 ? 32 : 16;
#pragma unroll
    for (int n = 0; n < kRowsOfThread * kColumns / kOfWord; ++n) {
      const int h = n % kRowsOfThread, first = n / kRowsOfThread * kOfWord;
      const int line = accumulator_row(thread) + h * kRowHalf;
      const uint64 of_line = Line::kIsKey ? rules.map.rows_of_key(rules.first_key + line, rules.first_row + first)
                                          : rules.map.keys_of_row(rules.first_row + line, rules.first_key + first);
      const uint64 seen = of_line >> accumulator_column(thread);
#pragma unroll
      for (int i = first / 2 + 2 * h; i < (first + kOfWord) / 2; i += 4) {
        const int column = i / 4 * kColumnsOfTile - first;
        if ((seen >> column & 1) == 0) s[i] = -kInfinity;
        if ((seen >> (column + 1) & 1) == 0) s[i + 1] = -kInfinity;
      }
    }
  }
}

}  // namespace attend
