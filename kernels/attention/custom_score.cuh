// Stub of the caller's custom score function. If a program has a custom score function, it is compiled with generated
// text that replaces this file and defines the same names (src/cuda/launch/custom_score_text.hpp).
#pragma once

#include "captured.cuh"
#include "score_point.cuh"

namespace attend {

// An element is held if it is the same for all pairs of row and key that are far from the diagonal.
struct CustomScoreCode {
  static constexpr bool kHasSlope = false;     // whether the derivative by the score may differ from 1
  static constexpr bool kMayBeLowest = false;  // whether a value may be so low that its product with log2(e) is
                                               // infinite
  static constexpr bool kHoldsAll = false;     // whether the held elements are the only inputs of the function that can
                                               // differ between pairs
  static constexpr bool kHolds = false;        // whether the function reads held elements
  static constexpr int kHeldFrom = 0;          // held elements are valid if row - key >= kHeldFrom
  static constexpr int kHeldUntil = 0;         // held elements are also valid if row - key <= kHeldUntil

  // Returns the function's value for at.score, which is the score after all other modifications and before masks.
  [[nodiscard]] static ATTEND_HOST_DEVICE float value(const ScorePoint<float>& at, const CapturedTensor* /*captured*/) {
    return at.score;
  }
  // Returns the function's value. `slope` receives the derivative by at.score.
  [[nodiscard]] static ATTEND_HOST_DEVICE float value_and_slope(const ScorePoint<float>& at,
                                                                const CapturedTensor* /*captured*/, float& slope) {
    slope = 1.0f;
    return at.score;
  }

  // The held elements. hold() reads them at any pair for which they are valid.
  struct Held {};
  [[nodiscard]] static ATTEND_HOST_DEVICE Held hold(const ScorePoint<float>& /*at*/,
                                                    const CapturedTensor* /*captured*/) {
    return {};
  }
  // Returns the same as value(), computed from the held elements.
  [[nodiscard]] static ATTEND_HOST_DEVICE float held_value(const ScorePoint<float>& at,
                                                           const CapturedTensor* /*captured*/, const Held& /*held*/) {
    return at.score;
  }
};

}  // namespace attend
