// Builds a block mask on a GPU with the kernels of kernels/masks. A block mask consists of tiles of 64 x 64 scores.
#pragma once

#include "attend/tensor.hpp"
#include "core/block_tiles.hpp"
#include "core/mask_program.hpp"

namespace attend::cuda {

/// Evaluates a mask function on a GPU and sets row_begin, seen and patterns of `tiles`. The sizes in `tiles` must
/// already be set. The order of the patterns is unspecified. The function returns when the results are available. It
/// waits for the stream once. It waits again if there are many results, or if the memory for patterns must grow. It
/// allocates about 8 bytes of GPU memory for each 64 x 64 tile, 1 KiB for each distinct pattern, and memory for
/// captures that are on the host.
/// @param gpu_ms  if not null, the GPU time in milliseconds is added to it. The time is measured with events from the
///         first operation on the stream to the end of the last copy, over all attempts. Copies of captures are
///         excluded
/// @throws Error (kInvalidArgument) if the stream is being captured, a capture is on another GPU, or there are more
///         than 2^31 - 1 tiles. Error (kMissingHardware, kUnsupported) if the library cannot use the GPU. Error
///         (kInternal) if the GPU is out of memory.
void make_tiles(const core::MaskProgram& program, Device device, Stream stream, core::BlockTiles& tiles,
                double* gpu_ms = nullptr);

}  // namespace attend::cuda
