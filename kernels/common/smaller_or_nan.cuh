// A minimum that propagates NaN, which fminf does not. Requires sm_80 or later.
#pragma once

namespace attend {

// Returns the smaller operand, or NaN if either is NaN. PTX ISA, floating point: min.
[[nodiscard]] __device__ __forceinline__ float smaller_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

}  // namespace attend
