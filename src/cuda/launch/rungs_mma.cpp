// Rungs 09 to 15, which compute float16 and bfloat16 on tensor cores with the instructions of Ampere.
//
// The tiles are the same on all architectures. No block needs more than 99 KB of shared memory, the limit on sm_120.
#include "cuda/launch/rung.hpp"
#include "kernels/ladder/pieces/ladder_shapes.cuh"

namespace attend::cuda {
namespace {

/// Returns one launch with this tile. `bytes` returns the shared memory that a tile of `rows` query rows and `keys`
/// keys needs.
std::vector<Step> sized(RungTile tile, int (*bytes)(int rows, int keys, int head_dim), const RungConfig& config) {
  tile.smem_bytes = bytes(tile.block_m, tile.block_n, config.head_dim);
  return {{.tile = tile}};
}

std::vector<Step> warp_wmma_forward(const RungConfig& config) {
  // A matrix fragment has 16 rows, and each of the 32 lanes processes one key.
  return sized({.block_m = 16, .block_n = 32, .threads = 32}, warp_wmma_bytes, config);
}

std::vector<Step> block_wmma_forward(const RungConfig& config) {
  // Needs 96 KB of shared memory at head_dim 128.
  return sized({.block_m = 64, .block_n = 64, .threads = 128}, block_wmma_bytes, config);
}

std::vector<Step> wmma_row_block_forward(const RungConfig& config) {
  // Needs 96 KB of shared memory at head_dim 128.
  return sized({.block_m = 128, .block_n = 64, .threads = 256}, wmma_row_block_bytes, config);
}

/// Returns the launch of rungs 12 and 13.
std::vector<Step> mma_forward(const RungConfig& config) {
  return {{.tile = {.block_m = 64,
                    .block_n = 64,
                    .threads = 128,  // four warps with 16 rows each, the minimum of mma
                    .smem_bytes = qkv_bytes(64, 64, 1, config.head_dim),
                    // Three blocks leave 168 registers per thread. Four blocks would leave 128, too few for O, S and
                    // the tile that is being loaded.
                    .min_blocks = 3}}};
}

std::vector<Step> mma_qreg_forward(const RungConfig& config) {
  return {{.tile = {.block_m = 64,
                    .block_n = 64,
                    .threads = 128,
                    .smem_bytes = mma_qreg_bytes(64, config.head_dim),
                    // With three blocks, only 168 registers would remain, and the kernel would spill at head_dim 128.
                    .min_blocks = 2}}};
}

std::vector<Step> mma_qreg_async_forward(const RungConfig& config) {
  constexpr int kRows = 128;  // 32 rows per warp, so each loaded operand of K and V is used in two products
  const bool is_wide = config.head_dim == 128;
  const int keys = is_wide ? 64 : 80;  // the widest score tile that fits in registers
  return {{.tile = {.block_m = kRows,
                    .block_n = keys,
                    .threads = 128,
                    .smem_bytes = staged_bytes(kRows, keys, 2, config.head_dim),  // 97 KB at head_dim 128
                    .min_blocks = 2},
           // If head_dim is not 128, registers suffice for both O and Q.
           .constants = {{"kQInRegisters", !is_wide}}}};
}

}  // namespace

Rung half_rung(int number, const char* name, const char* description, StepsOf forward) {
  return {.number = number,
          .name = name,
          .description = description,
          .dtypes = {DType::kF16, DType::kBF16},
          .head_dims = {64, 128},
          .needs_alignment = true,
          .folds_scale = true,
          .instructions = &Arch::cp_async,
          .forward = forward};
}

std::vector<Rung> mma_rungs() {
  std::vector<Rung> rungs = {
      half_rung(9, "warp_wmma", "rung 09: tensor cores through wmma, one warp per block", warp_wmma_forward),
      half_rung(10, "block_wmma", "rung 10: four warps share K and V and divide the products by columns",
                block_wmma_forward),
      half_rung(11, "wmma_row_block", "rung 11: each warp has its own rows, O stays in registers",
                wmma_row_block_forward),
      half_rung(12, "mma", "rung 12: mma.sync and ldmatrix, S and P stay in registers", mma_forward),
      half_rung(13, "mma_swizzle", "rung 13: tiles without bank conflicts", mma_forward),
      half_rung(14, "mma_qreg", "rung 14: Q in registers, one barrier per tile, 16-byte stores", mma_qreg_forward),
      half_rung(15, "mma_qreg_async", "rung 15: cp.async, two stages, 32 rows per warp", mma_qreg_async_forward)};
  for (Rung& wmma : std::span(rungs).first(3)) {
    wmma.toolkit_headers = true;
    wmma.folds_scale = false;  // all other rungs of this file fold the scale into the argument of exp2
  }
  rungs.back().tflops = 390;
  rungs.back().blocks_per_multiprocessor = 2;
  return rungs;
}

}  // namespace attend::cuda
