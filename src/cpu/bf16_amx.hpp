// Tile products of bfloat16 operands by AMX, which Intel processors have since Sapphire Rapids. A tile register is a
// matrix of 16 rows of 16 words. One instruction adds the product of two registers to a third register. It computes 16
// x 16 x 32 multiply-adds in 16 cycles.
#pragma once

#include "cpu/bf16_dot.hpp"

namespace attend::cpu {

/// Returns whether this process can use AMX. The processor must support AMX, and the operating system must allow the
/// process to use the tile registers. The first call requests this permission.
bool amx_available();

/// Configures the calling thread's tile registers until release_amx(). Takes about a tenth of the time of one tile
/// product.
void configure_amx();
void release_amx();

/// Computes bf16_dot_gemm() by AMX. The calling thread's tile registers must be configured. If g has ranges, blocks of
/// C are at most 16 rows high. AMX sums the even and the odd elements of pairs separately. The last bits of its results
/// therefore differ from those of vdpbf16ps.
void amx_gemm(const Bf16DotArgs& g);

/// Computes amx_gemm() with loops instead of tile instructions, on any processor with AVX-512. Tests use it on machines
/// without AMX.
void emulated_amx_gemm(const Bf16DotArgs& g);

}  // namespace attend::cpu
