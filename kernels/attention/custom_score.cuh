// The caller's custom modification of scores. A program with a custom score is compiled with generated text in place of
// this file, which defines the same names (src/cuda/launch/custom_score_text.hpp).
#pragma once

#include "captured.cuh"
#include "score_point.cuh"

namespace attend {

struct CustomScoreCode {
  static constexpr bool kHasSlope = false;     // the derivative by the score may differ from 1
  static constexpr bool kMayBeLowest = false;  // a value may be so low that its product with log2(e) is infinite
  static constexpr bool kHoldsAll = false;  // only held elements differ between pairs, of all that the function reads
  static constexpr bool kHolds = false;     // the function reads held elements: they are the same for all pairs far
                                            // from the diagonal
  static constexpr int kHeldFrom = 0;       // the held elements apply if row - key >= kHeldFrom
  static constexpr int kHeldUntil = 0;      // the held elements apply also if row - key <= kHeldUntil

  // Returns the function of at.score, after the other modifications and before masks.
  [[nodiscard]] static ATTEND_HOST_DEVICE float value(const ScorePoint<float>& at, const CapturedTensor* /*captured*/) {
    return at.score;
  }
  // slope: receives the derivative by at.score.
  [[nodiscard]] static ATTEND_HOST_DEVICE float value_and_slope(const ScorePoint<float>& at,
                                                                const CapturedTensor* /*captured*/, float& slope) {
    slope = 1.0f;
    return at.score;
  }

  // The held elements, read at any of the pairs.
  struct Held {};
  [[nodiscard]] static ATTEND_HOST_DEVICE Held hold(const ScorePoint<float>& /*at*/,
                                                    const CapturedTensor* /*captured*/) {
    return {};
  }
  // Returns value(), with the held elements.
  [[nodiscard]] static ATTEND_HOST_DEVICE float held_value(const ScorePoint<float>& at,
                                                           const CapturedTensor* /*captured*/, const Held& /*held*/) {
    return at.score;
  }
};

}  // namespace attend
