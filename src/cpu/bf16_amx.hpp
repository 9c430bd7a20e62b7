// Tile products of bfloat16 operands by AMX (Intel's Sapphire Rapids and later): a register is a matrix of 16 rows of
// 16 words, one instruction adds the product of two of them, 16 x 16 x 32 multiply-adds in 16 cycles, to a third.
#pragma once

#include "cpu/bf16_dot.hpp"

namespace attend::cpu {

/// Whether this process can use AMX: the processor has it, and the system grants the state of its registers, which is
/// asked for at the first call.
bool amx_available();

/// The calling thread's tile registers get their shape, which costs as much as a tenth of a product; until released.
void configure_amx();
void release_amx();

/// bf16_dot_gemm() on AMX, in a thread whose registers are configured: blocks of C at most 16 rows high where g has
/// ranges. A pair's two products are added to sums of their own, so that results differ in their last bits from
/// vdpbf16ps's.
void amx_gemm(const Bf16DotArgs& g);

/// The same with the tile instructions played by loops, on any processor with AVX-512: what tests use where there is no
/// AMX.
void emulated_amx_gemm(const Bf16DotArgs& g);

}  // namespace attend::cpu
