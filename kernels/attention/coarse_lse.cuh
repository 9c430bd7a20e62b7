// Defines which lse are so large that their rounding matters, and the bound of their error: for the CPU and the GPU.
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"

namespace attend {

// From this magnitude on, half a unit in the last place of lse changes p by a factor of at least 1 + 2^-15.
constexpr float kCoarseLse = 1024.0f;

// Largest relative error of a float32 lse: several roundings, including those of the forward pass's sum.
constexpr float kLargestLseError = 0x1p-22f;

[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool is_coarse(float lse) {
  return (lse >= kCoarseLse || lse <= -kCoarseLse) && lse < kInfinity && lse > -kInfinity;
}

}  // namespace attend
