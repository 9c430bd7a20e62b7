// Rungs 16 to 18: float16 and bfloat16 with Hopper's warpgroup instructions.
#include "cuda/launch/ladder.hpp"

namespace attend::cuda {
namespace {

constexpr unsigned kElementBytes = 2;
constexpr int kWarpgroup = 128;

bool has_wgmma(const Arch& arch) {
  return arch.wgmma;
}

/// Tiles of q and, `stages` times, of k and v.
unsigned tiles_bytes(const RungConfig& config, int block_m, int block_n, int stages) {
  return static_cast<unsigned>((block_m + 2 * stages * block_n) * config.head_dim) * kElementBytes;
}

std::vector<Step> wgmma_forward(const RungConfig& config) {
  // Two warpgroups a block: k and v are read half as often as with one.
  constexpr int kBlockM = 128;
  constexpr int kBlockN = 128;
  return {{.function = "wgmma_forward",
           .block_m = kBlockM,
           .block_n = kBlockN,
           .threads = 2 * kWarpgroup,
           .smem_bytes = tiles_bytes(config, kBlockM, kBlockN, 2)}};
}

}  // namespace

std::vector<Rung> wgmma_rungs() {
  return {
      {.number = 16,
       .name = "wgmma",
       .description = "rung 16: warpgroup matrix products from swizzled shared memory",
       .source = "ladder/16_wgmma.cuh",
       .dtypes = {DType::kF16, DType::kBF16},
       .head_dims = {64, 128},
       .alignment = 16,
       .folds_scale = true,
       .supports = has_wgmma,
       .forward = wgmma_forward},
  };
}

}  // namespace attend::cuda
