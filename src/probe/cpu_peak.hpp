// What this machine's processor does at most: multiply-adds on registers and nothing else. A roofline's ceiling.
#pragma once

namespace attend::cpu {

/// GFLOP/s of float32 fused multiply-adds of the widest vectors in use, on so many threads; two operations each.
/// Takes a second or less. The best of several short runs counts: anything else on the machine can only slow one down.
/// @throws Error (kInvalidArgument) for less than one thread or more than 4096.
[[nodiscard]] double f32_peak_gflops(int threads);

/// The same of the unit that multiplies bfloat16 in this process (bf16_unit()): AMX's tiles or vdpbf16ps. 0 where it
/// has none and bfloat16 is multiplied as float32.
[[nodiscard]] double bf16_peak_gflops(int threads);

}  // namespace attend::cpu
