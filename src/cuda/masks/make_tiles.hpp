// Makes the tiles of a block mask on a GPU, with the kernels of kernels/masks.
#pragma once

#include "attend/tensor.hpp"
#include "core/block_tiles.hpp"
#include "core/mask_program.hpp"

namespace attend::cuda {

/// Fills row_begin, seen and patterns of `tiles`, whose sizes are set. Patterns are numbered in no particular order.
/// Returns when the results are available. This takes one wait for the stream, a second wait if there are many results,
/// and more waits if the memory for patterns must grow. GPU memory: about 8 bytes per 64 x 64 tile, 1 KiB per distinct
/// pattern, and the elements of captures in host memory.
/// @param gpu_ms  if not null, the time from the first operation on the stream to the end of the last copy is added to
///         it. Events measure the time over all attempts. Copies of captures are excluded
/// @throws Error (kInvalidArgument) for a stream in a capture, a capture on another GPU, or more than 2^31 - 1 tiles;
///         (kMissingHardware, kUnsupported) if the library cannot use the GPU; (kInternal) if the GPU is out of memory.
void make_tiles(const core::MaskProgram& program, Device device, Stream stream, core::BlockTiles& tiles,
                double* gpu_ms = nullptr);

}  // namespace attend::cuda
