// Measures the peak arithmetic rate of the processor, which is the ceiling of a roofline. The measured loops execute
// multiply-adds without memory accesses.
#pragma once

namespace attend::cpu {

/// Returns the GFLOP/s of float32 fused multiply-adds on `threads` threads, with the widest vectors of the active SIMD
/// target. A multiply-add counts as two operations. Takes a second or less. The result is the best of several short
/// runs, because other work on the machine can only slow down a run.
/// @throws Error (kInvalidArgument) if `threads` is less than 1 or more than 4096.
[[nodiscard]] double f32_peak_gflops(int threads);

/// Returns the GFLOP/s of the unit that multiplies bfloat16 in this process (bf16_unit()), which is AMX or vdpbf16ps.
/// Returns 0 if there is no such unit and bfloat16 is converted to float32 for products.
[[nodiscard]] double bf16_peak_gflops(int threads);

}  // namespace attend::cpu
