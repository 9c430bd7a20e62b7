// Position of a part's rows and keys in the larger problem. Masks, ALiBi and dropout use positions in the larger
// problem, so that the merged result of the parts equals that of the larger problem.
#pragma once

#include <cstdint>

#include "kernels/attention/key_range.cuh"

namespace attend::core {

/// Position of a part. Its row i is row `row_begin + step * i` of the larger problem, and its key j is key `key_begin +
/// step * j`.
struct Placement {
  std::int64_t sequence_begin = 0;  ///< number of the part's first sequence, counted in the larger problem
  std::int64_t row_begin = 0;
  std::int64_t key_begin = 0;
  /// Distance between neighbouring rows, and between neighbouring keys, in the larger problem. At least 1. Rows and
  /// keys have the same step, so that the edge of a causal or window mask remains a diagonal in the part.
  std::int64_t step = 1;
  std::int64_t whole_seqlen_q = 0;  ///< number of rows of the sequence in the larger problem
  std::int64_t whole_seqlen_k = 0;

  /// Returns the signed distance, in the larger problem, from key j to the diagonal of row i. `i` and `j` are indices
  /// of the part.
  [[nodiscard]] constexpr std::int64_t distance(std::int64_t i, std::int64_t j) const {
    return row_begin - key_begin + whole_seqlen_k - whole_seqlen_q + step * (i - j);
  }

  /// Returns the larger problem's window as a mask for the part. The mask moves the diagonal by changing seqlen_q, so
  /// its seqlen_q is not the part's number of rows. The result may be used to find the keys of a row. It may also be
  /// used to find the rows of a key, but that range may contain rows that do not exist. The ring makes only parts in
  /// which every row sees a key and every key is seen, because backends assume this.
  [[nodiscard]] WindowMask window(std::int64_t seqlen_k, std::int64_t window_left, std::int64_t window_right) const {
    // Row i of the part sees the part's keys i + lowest to i + highest.
    const std::int64_t lowest = -floor_div(window_left - distance(0, 0), step);
    const std::int64_t highest = floor_div(distance(0, 0) + window_right, step);
    const auto shifted = [seqlen_k](std::int64_t diagonal, std::int64_t left, std::int64_t right) {
      return WindowMask{seqlen_k - diagonal, seqlen_k, left, right};
    };
    if (window_left < 0 && window_right < 0) return shifted(0, kOpenWindow, kOpenWindow);
    if (window_left < 0) return shifted(highest, kOpenWindow, 0);
    if (window_right < 0) return shifted(lowest, 0, kOpenWindow);
    // If the window is so narrow that it lies between two neighbouring keys of the part, no row sees a key.
    if (highest < lowest) return shifted(kFar, 0, 0);
    return shifted(highest, highest - lowest, 0);
  }

 private:
  [[nodiscard]] static constexpr std::int64_t floor_div(std::int64_t n, std::int64_t d) {
    return n >= 0 ? n / d : -((-n + d - 1) / d);
  }
};

}  // namespace attend::core
