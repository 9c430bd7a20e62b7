// Layout of accumulators of mma.m16n8 and wgmma.m64, and masks for scores in this layout.
//
// The two instructions have the same layout of float32 accumulators. A tile has 8 * kTiles columns. The tile has 16
// rows for each warp. Lane l of a warp has
//   value[4 * j + 2 * h + b] = (row l / 4 + 8 * h, column 8 * j + 2 * (l % 4) + b),   h, b in {0, 1}
// So each thread has two rows, and the four neighbouring lanes of a quad share a row.
// PTX ISA: "Matrix Fragments for mma.m16n8k16", "Register Fragments ... for wgmma.mma_async.m64nNk16".
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"

namespace attend {

constexpr int kRowsOfThread = 2;   // number of accumulator rows of a thread, numbered by h
constexpr int kRowHalf = 8;        // distance between a thread's two rows
constexpr int kColumnsOfTile = 8;  // number of columns of the tile that have the same j

// Returns the thread's first row (h = 0) in the tile of its warps, which has 16 rows for each warp. The thread's other
// row is kRowHalf rows further down.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int accumulator_row(int thread) {
  return thread / 32 * 16 + thread % 32 / 4;
}

// Returns the thread's first column (b = 0) in each group of eight columns.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int accumulator_column(int thread) {
  return thread % 4 * 2;
}

// Returns how many keys of the tile, which starts at key_begin, precede key_end. key_end is the first key behind the
// keys that a row sees (KeyRange::end).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int keys_in_tile(int64 key_end, int64 key_begin, int tile) {
  const int64 count = key_end - key_begin;
  return count < 0 ? 0 : count > tile ? tile : static_cast<int>(count);
}

// Sets masked scores to -inf. Row h of the thread sees the first num_keys[h] keys of the tile. The mask selects instead
// of adding -inf, because the score may be NaN.
template <int kCount>
ATTEND_HOST_DEVICE void mask_keys(float (&score)[kCount], int thread, const int (&num_keys)[kRowsOfThread]) {
  ATTEND_UNROLL
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int first_unseen = num_keys[h] - accumulator_column(thread);  // compared with compile-time constants below
    ATTEND_UNROLL
    for (int i = 2 * h; i < kCount; i += 4) {
      const int column = i / 4 * kColumnsOfTile;
      if (column >= first_unseen) score[i] = -kInfinity;
      if (column + 1 >= first_unseen) score[i + 1] = -kInfinity;
    }
  }
}

}  // namespace attend
