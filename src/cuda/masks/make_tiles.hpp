// A block mask's tiles, made on a GPU: kernels/masks, and what they are given.
#pragma once

#include "attend/tensor.hpp"
#include "core/block_tiles.hpp"
#include "core/mask_program.hpp"

namespace attend::cuda {

/// Fills row_begin, seen and patterns of `tiles`, whose sizes are given, with patterns numbered in any order. Returns
/// when they are there: one wait for the stream, a second one if they are many, and more if there are so many patterns
/// that the memory for them has to be larger. Memory of the GPU: about 8 bytes a tile of 64 x 64, 1 KiB for each
/// different pattern, and the elements of captures of the host.
/// @param gpu_ms  not null: the time from the first operation on the stream to the end of the last copy is added to it,
///                by events, of all attempts. Copies of captures are before it
/// @throws Error (kInvalidArgument) naming a stream that is being captured, a capture on another GPU, or more than
///         2^31 - 1 tiles; (kMissingHardware, kUnsupported) where the library cannot compute on that GPU; (kInternal)
///         if its memory is out.
void make_tiles(const core::MaskProgram& program, Device device, Stream stream, core::BlockTiles& tiles,
                double* gpu_ms = nullptr);

}  // namespace attend::cuda
