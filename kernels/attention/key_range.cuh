// The keys that a query row sees under causal and window masks. Host and device share this index arithmetic.
//
// Masks are aligned at the bottom right, so the diagonal passes through the last row and the last key. With off =
// seqlen_k - seqlen_q, row i sees the keys
//   [max(0, i + off - window_left), min(seqlen_k, i + off + window_right + 1))
// A negative window_left or window_right leaves its side open. A causal mask has window_right = 0.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr int64 kOpenWindow = -1;       // value of window_left or window_right that hides no key
constexpr int64 kFar = int64{1} << 40;  // a distance beyond every row and key
constexpr int64 kBeyondTile = 1 << 20;  // wider than any tile, and small enough for 32-bit arithmetic

// Returns a distance as an int, clamped to kBeyondTile.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int clamped_to_tile(int64 distance) {
  const int64 low = distance < kBeyondTile ? distance : kBeyondTile;
  return static_cast<int>(low > -kBeyondTile ? low : -kBeyondTile);
}

struct KeyRange {
  int64 begin;  // first visible key
  int64 end;    // one past the last visible key. The range is empty if end <= begin

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool empty() const { return end <= begin; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool contains(int64 key) const { return begin <= key && key < end; }
};

// The mask of one sequence. Lengths are less than 2^31, and windows are less than 2^31 or kOpenWindow, so the
// arithmetic cannot overflow.
struct WindowMask {
  int64 seqlen_q;
  int64 seqlen_k;
  int64 window_left;
  int64 window_right;

  // Returns the keys that the row would see if there were keys at all positions from -infinity to infinity. An open
  // side ends at distance kFar.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange unbounded_row(int64 row_index) const {
    const int64 diagonal = row_index + seqlen_k - seqlen_q;
    return {window_left < 0 ? -kFar : diagonal - window_left, window_right < 0 ? kFar : diagonal + window_right + 1};
  }

  // Returns the keys that the row sees.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange row(int64 row_index) const {
    return bounded(unbounded_row(row_index), seqlen_k);
  }

  // Returns the range of keys that a tile of rows must visit, because at least one of its rows [row_begin, row_end) may
  // see them.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange rows(int64 row_begin, int64 row_end) const {
    const KeyRange first = row(row_begin);
    const KeyRange last = row(row_end - 1);
    return {first.begin, last.end < first.begin ? first.begin : last.end};
  }

  // Returns the rows that would see the key if there were rows at all positions. rows_of_key() returns those that
  // exist.
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

  // Returns the part of `range` that lies in [0, length). An empty range keeps its position.
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr KeyRange bounded(KeyRange range, int64 length) {
    const int64 end = range.end > length ? length : range.end;
    const int64 begin = range.begin < 0 ? 0 : range.begin;
    return {begin, end < begin ? begin : end};
  }
};

}  // namespace attend
