// Which lse are so large that their rounding shows, and how far off they may be: for the CPU and the GPU.
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"

namespace attend {

// Half a unit in the last place of an lse from here on is a factor of p of 1 + 2^-15 and more.
constexpr float kCoarseLse = 1024.0f;

// The largest error of a float32 lse, relative to it: several roundings, those of the forward pass's sum included.
constexpr float kLargestLseError = 0x1p-22f;

[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool is_coarse(float lse) {
  return (lse >= kCoarseLse || lse <= -kCoarseLse) && lse < kInfinity && lse > -kInfinity;
}

}  // namespace attend
