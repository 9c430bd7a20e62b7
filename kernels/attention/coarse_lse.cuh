// Defines which lse are so large that their rounding matters, and bounds their error. The CPU and the GPU use these
// definitions.
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"

namespace attend {

// If |lse| is at least this number, half a unit in the last place of lse changes p by a factor of 1 + 2^-15 or more.
constexpr float kCoarseLse = 1024.0f;

// Largest relative error of a float32 lse. The bound covers several roundings, including those of the sum in the
// forward pass.
constexpr float kLargestLseError = 0x1p-22f;

[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool is_coarse(float lse) {
  return (lse >= kCoarseLse || lse <= -kCoarseLse) && lse < kInfinity && lse > -kInfinity;
}

}  // namespace attend
