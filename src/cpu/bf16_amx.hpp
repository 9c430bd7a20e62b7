// Tile products of bfloat16 operands by AMX (Intel's Sapphire Rapids and later). A tile register is a matrix of 16 rows
// of 16 words. One instruction adds the product of two registers to a third: 16 x 16 x 32 multiply-adds in 16 cycles.
#pragma once

#include "cpu/bf16_dot.hpp"

namespace attend::cpu {

/// Returns whether this process can use AMX. The processor must have it, and the operating system must grant the
/// register state, which the first call requests.
bool amx_available();

/// Configures the calling thread's tile registers until release_amx(). Costs as much as a tenth of a product.
void configure_amx();
void release_amx();

/// Computes bf16_dot_gemm() by AMX, on a thread with configured registers. Blocks of C are at most 16 rows high if g
/// has ranges. The two products of a pair are summed separately, so the last bits of results differ from those of
/// vdpbf16ps.
void amx_gemm(const Bf16DotArgs& g);

/// Does the same with loops instead of tile instructions, on any processor with AVX-512. For tests on machines without
/// AMX.
void emulated_amx_gemm(const Bf16DotArgs& g);

}  // namespace attend::cpu
