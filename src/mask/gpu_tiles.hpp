// Makes the tiles of a mask function on a GPU.
#pragma once

#include "core/block_tiles.hpp"
#include "core/mask_program.hpp"
#include "mask/mask_function.hpp"

namespace attend::mask {

/// Returns the function in the form that GPUs need.
/// @throws Error (kUnsupported) naming an operation whose last bits differ between machines.
[[nodiscard]] core::MaskProgram gpu_program(const MaskFunction::State& mask);

/// Fills in row_begin, seen and patterns of `tiles`, whose sizes must be set. The argument `gpu_ms` is that of
/// cuda::make_tiles().
void make_on_gpu(const MaskFunction::State& mask, const BlockMaskPlace& place, core::BlockTiles& tiles,
                 double* gpu_ms = nullptr);

}  // namespace attend::mask
