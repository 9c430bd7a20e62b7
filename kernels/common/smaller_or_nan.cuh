// A minimum that lets NaN through, where fminf would hide it. sm_80 and later.
#pragma once

namespace attend {

// The smaller of both; NaN where one is. PTX ISA, floating point: min.
[[nodiscard]] __device__ __forceinline__ float smaller_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

}  // namespace attend
