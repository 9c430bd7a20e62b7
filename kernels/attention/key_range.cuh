// The keys that a query row sees under causal and window masks: index arithmetic, shared by host and device.
//
// Masks align bottom right. With off = seqlen_k - seqlen_q, row i sees the keys
//   [max(0, i + off - window_left), min(seqlen_k, i + off + window_right + 1))
// where a negative window is open on its side; causal is window_right = 0.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr int64 kOpenWindow = -1;       // value of window_left or window_right that masks nothing
constexpr int64 kFar = int64{1} << 40;  // beyond every row and key
constexpr int64 kBeyondTile = 1 << 20;  // wider than any tile, and small enough for 32-bit arithmetic

// Returns a distance as an int, clamped to kBeyondTile.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int clamped_to_tile(int64 distance) {
  const int64 low = distance < kBeyondTile ? distance : kBeyondTile;
  return static_cast<int>(low > -kBeyondTile ? low : -kBeyondTile);
}

struct KeyRange {
  int64 begin;  // first visible key
  int64 end;    // one past the last visible key; end <= begin: none

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool empty() const { return end <= begin; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool contains(int64 key) const { return begin <= key && key < end; }
};

// The mask of one sequence. Lengths are < 2^31, and windows are < 2^31 or kOpenWindow, so the arithmetic cannot
// overflow.
struct WindowMask {
  int64 seqlen_q;
  int64 seqlen_k;
  int64 window_left;
  int64 window_right;

  // Returns the keys that the row would see if keys ranged from minus to plus infinity; open sides end kFar away.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange unbounded_row(int64 row_index) const {
    const int64 diagonal = row_index + seqlen_k - seqlen_q;
    return {window_left < 0 ? -kFar : diagonal - window_left, window_right < 0 ? kFar : diagonal + window_right + 1};
  }

  // Returns the keys that the row sees.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange row(int64 row_index) const {
    return bounded(unbounded_row(row_index), seqlen_k);
  }

  // Returns the keys that at least one row of [row_begin, row_end) may see: the range that a tile of rows must visit.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange rows(int64 row_begin, int64 row_end) const {
    const KeyRange first = row(row_begin);
    const KeyRange last = row(row_end - 1);
    return {first.begin, last.end < first.begin ? first.begin : last.end};
  }

  // Transposes of the two functions: the rows that see the key.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange unbounded_rows_of_key(int64 key) const {
    const int64 diagonal = key - (seqlen_k - seqlen_q);
    return {window_right < 0 ? -kFar : diagonal - window_right, window_left < 0 ? kFar : diagonal + window_left + 1};
  }

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange rows_of_key(int64 key) const {
    return bounded(unbounded_rows_of_key(key), seqlen_q);
  }

  // Returns the rows that see at least one key of [key_begin, key_end).
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange rows_of_keys(int64 key_begin, int64 key_end) const {
    const KeyRange first = rows_of_key(key_begin);
    const KeyRange last = rows_of_key(key_end - 1);
    return {first.begin, last.end < first.begin ? first.begin : last.end};
  }

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool is_open() const { return window_left < 0 && window_right < 0; }

  // Returns the part of `range` in [0, length); an empty range keeps its position.
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr KeyRange bounded(KeyRange range, int64 length) {
    const int64 end = range.end > length ? length : range.end;
    const int64 begin = range.begin < 0 ? 0 : range.begin;
    return {begin, end < begin ? begin : end};
  }
};

}  // namespace attend
