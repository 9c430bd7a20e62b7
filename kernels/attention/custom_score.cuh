// The caller's own modification of scores. A program that has one is compiled with a text in the place of this file
// that defines the same names (src/cuda/launch/custom_score_text.hpp).
#pragma once

#include "captured.cuh"
#include "score_point.cuh"

namespace attend {

struct CustomScoreCode {
  static constexpr bool kHasSlope = false;     // is the derivative by the score other than 1?
  static constexpr bool kMayBeLowest = false;  // may a value be so low that its product with log2(e) is infinite?
  static constexpr bool kHoldsAll = false;     // are those below all that differ from pair to pair?
  static constexpr bool kHolds = false;        // does it read elements that are the same for all pairs far from the
  static constexpr int kHeldFrom = 0;          // diagonal: for each row - key from kHeldFrom on,
  static constexpr int kHeldUntil = 0;         // and for each until kHeldUntil?

  // Of at.score: after the other modifications, before masks.
  [[nodiscard]] static ATTEND_HOST_DEVICE float value(const ScorePoint<float>& at, const CapturedTensor* /*captured*/) {
    return at.score;
  }
  // slope: the derivative by at.score.
  [[nodiscard]] static ATTEND_HOST_DEVICE float value_and_slope(const ScorePoint<float>& at,
                                                                const CapturedTensor* /*captured*/, float& slope) {
    slope = 1.0f;
    return at.score;
  }

  // Such elements, read at any of the pairs.
  struct Held {};
  [[nodiscard]] static ATTEND_HOST_DEVICE Held hold(const ScorePoint<float>& /*at*/,
                                                    const CapturedTensor* /*captured*/) {
    return {};
  }
  // value() with them.
  [[nodiscard]] static ATTEND_HOST_DEVICE float held_value(const ScorePoint<float>& at,
                                                           const CapturedTensor* /*captured*/, const Held& /*held*/) {
    return at.score;
  }
};

}  // namespace attend
