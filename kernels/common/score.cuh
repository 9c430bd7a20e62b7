// What the options do to the score of one row and key: one function each, for every layout of scores over threads.
//
//   s = scale q.k;  s = softcap tanh(s / softcap);  s += bias - slope |i + off - j|;  s = -inf where masked
//
// Order and meaning are those of src/cpu/reference.cpp. Who owns which score, and who applies them, is in
// grid_scores.cuh (a tile a thread) and accumulator_scores.cuh (tensor cores).
#pragma once

#include "config_enums.cuh"
#include "key_range.cuh"
#include "numbers.cuh"
#include "portable.cuh"

namespace attend {

// tanh(x), relative error below 2^-18, absolute below 2^-22: two instructions of the special function unit, where the
// library's tanhf branches. Near 0, where 1 - 2 / (e^2x + 1) would cancel, the first terms of the series.
[[nodiscard]] ATTEND_HOST_DEVICE float tanh_fast(float x) {
  constexpr float kNearZero = 0.125f;
  const float square = x * x;
  const float series = x * multiply_add(square, multiply_add(square, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f);
  const float whole = multiply_add(-2.0f, reciprocal_fast(exp2_fast(x * (2.0f * kLog2E)) + 1.0f), 1.0f);
  return square < kNearZero * kNearZero ? series : whole;  // NaN and infinities are whole's
}

// Below it tanh x is x to the last bit: x (1 - x^2 / 3).
constexpr float kNearlyLinear = 0x1p-13f;

// d softcap tanh(s / softcap) / ds, of t = tanh(s / softcap).
[[nodiscard]] ATTEND_HOST_DEVICE float softcap_slope(float t) {
  return multiply_add(-t, t, 1.0f);
}

// What a row sees of a tile of keys, rows and keys counted from the tile's first.
struct TileView {
  int diagonal;   // i + off - j of the first row and key
  int rows_left;  // that exist; the rest of the tile lies beyond the sequence
  int keys_left;
  int first_seen;  // a row sees keys with first_seen <= key - row < end_seen
  int end_seen;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr int clamped(int64 value) {
    const int64 low = value < kBeyondTile ? value : kBeyondTile;
    return static_cast<int>(low > -kBeyondTile ? low : -kBeyondTile);
  }

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr TileView of(const WindowMask& window, int64 first_row,
                                                                int64 first_key) {
    const int64 diagonal = first_row + window.seqlen_k - window.seqlen_q - first_key;
    return {static_cast<int>(diagonal), clamped(window.seqlen_q - first_row), clamped(window.seqlen_k - first_key),
            clamped(window.window_left < 0 ? -kFar : diagonal - window.window_left),
            clamped(window.window_right < 0 ? kFar : diagonal + window.window_right + 1)};
  }

  // Does every row of the tile see every key of it, as far as lengths and window go?
  template <int kRowsOfTile, int kKeysOfTile>
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool all_visible() const {
    return rows_left >= kRowsOfTile && keys_left >= kKeysOfTile && first_seen <= 1 - kRowsOfTile &&
           end_seen >= kKeysOfTile;
  }

  // Does a row see the key `distance` behind it in the tile, as far as the window goes?
  template <MaskKind kMask>
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool in_window(int distance) const {
    return (kMask == MaskKind::kFull || distance < end_seen) && (kMask != MaskKind::kWindow || distance >= first_seen);
  }
};

}  // namespace attend
