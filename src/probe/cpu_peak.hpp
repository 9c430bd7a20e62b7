// Measures the peak arithmetic rate of the processor, with multiply-adds on registers only. The ceiling of a roofline.
#pragma once

namespace attend::cpu {

/// Returns the GFLOP/s of float32 fused multiply-adds on `threads` threads, with the widest vectors in use; a
/// multiply-add counts as two operations. Takes a second or less. The result is the best of several short runs, because
/// other work on the machine can only slow a run down.
/// @throws Error (kInvalidArgument) for less than one thread or more than 4096.
[[nodiscard]] double f32_peak_gflops(int threads);

/// Returns the GFLOP/s of the unit that multiplies bfloat16 in this process (bf16_unit()): AMX tiles or vdpbf16ps.
/// Returns 0 if there is none and bfloat16 is multiplied as float32.
[[nodiscard]] double bf16_peak_gflops(int threads);

}  // namespace attend::cpu
