// Makes a mask function's tiles on a GPU.
#pragma once

#include "core/block_tiles.hpp"
#include "core/mask_program.hpp"
#include "mask/mask_function.hpp"

namespace attend::mask {

/// Returns the function in the form for GPUs.
/// @throws Error (kUnsupported) naming an operation whose last bits differ between machines.
[[nodiscard]] core::MaskProgram gpu_program(const MaskFunction::State& mask);

/// Fills row_begin, seen and patterns of `tiles`, whose sizes are set. gpu_ms: as in cuda::make_tiles().
void make_on_gpu(const MaskFunction::State& mask, const BlockMaskPlace& place, core::BlockTiles& tiles,
                 double* gpu_ms = nullptr);

}  // namespace attend::mask
