// Rungs 09 to 15: float16 and bfloat16 on tensor cores, with the instructions that Ampere brought.
//
// One table of tiles serves all architectures: no block takes more than the 99 KB that sm_120 has.
#include "cuda/launch/rung.hpp"
#include "kernels/common/ladder_shapes.cuh"

namespace attend::cuda {
namespace {

std::vector<Step> warp_wmma_forward(const RungConfig& config) {
  constexpr int kRows = 16, kKeys = 32;  // a fragment's rows; a lane for each key
  return {{.function = "warp_wmma_forward",
           .block_m = kRows,
           .block_n = kKeys,
           .threads = 32,
           .smem_bytes = static_cast<unsigned>(warp_wmma_bytes(kRows, kKeys, config.head_dim))}};
}

std::vector<Step> block_wmma_forward(const RungConfig& config) {
  constexpr int kRows = 64, kKeys = 64;  // 96 KB at head_dim 128
  return {{.function = "block_wmma_forward",
           .block_m = kRows,
           .block_n = kKeys,
           .threads = 128,
           .smem_bytes = static_cast<unsigned>(block_wmma_bytes(kRows, kKeys, config.head_dim))}};
}

std::vector<Step> wmma_row_block_forward(const RungConfig& config) {
  constexpr int kRows = 128, kKeys = 64;  // 96 KB at head_dim 128
  return {{.function = "wmma_row_block_forward",
           .block_m = kRows,
           .block_n = kKeys,
           .threads = 256,
           .smem_bytes = static_cast<unsigned>(wmma_row_block_bytes(kRows, kKeys, config.head_dim))}};
}

std::vector<Step> mma_forward(const RungConfig& config) {
  return {{.function = "mma_forward",
           .block_m = 64,
           .block_n = 64,
           .threads = 128,  // 16 rows a warp, the least that mma takes
           .smem_bytes = static_cast<unsigned>(qkv_bytes(64, 64, 1, config.head_dim)),
           .min_blocks = 3}};  // 168 registers; four blocks would leave 128, which O, S and a tile on its way exceed
}

std::vector<Step> mma_swizzle_forward(const RungConfig& config) {
  std::vector<Step> steps = mma_forward(config);
  steps[0].function = "mma_swizzle_forward";
  return steps;
}

std::vector<Step> mma_qreg_forward(const RungConfig& config) {
  return {{.function = "mma_qreg_forward",
           .block_m = 64,
           .block_n = 64,
           .threads = 128,
           .smem_bytes = static_cast<unsigned>(mma_qreg_bytes(64, config.head_dim)),
           .min_blocks = 2}};  // at head_dim 128, 168 registers would spill
}

std::vector<Step> mma_qreg_async_forward(const RungConfig& config) {
  constexpr int kRows = 128;  // 32 a warp: two products for each operand of K and V
  const bool is_wide = config.head_dim == 128;
  const int keys = is_wide ? 64 : 80;  // as many as the registers hold scores of
  return {{.function = "mma_qreg_async_forward",
           .block_m = kRows,
           .block_n = keys,
           .threads = 128,
           .smem_bytes = static_cast<unsigned>(staged_bytes(kRows, keys, 2, config.head_dim)),  // 97 KB at head_dim 128
           .constants = {{"kQInRegisters", !is_wide}},  // where O leaves room for them
           .min_blocks = 2}};
}

Rung half_rung(int number, const char* name, const char* description, const char* source,
               std::vector<Step> (*forward)(const RungConfig&)) {
  return {.number = number,
          .name = name,
          .description = description,
          .source = source,
          .dtypes = {DType::kF16, DType::kBF16},
          .head_dims = {64, 128},
          .needs_alignment = true,
          .instructions = kCpAsync,
          .forward = forward};
}

Rung wmma_rung(int number, const char* name, const char* description, const char* source,
               std::vector<Step> (*forward)(const RungConfig&)) {
  Rung rung = half_rung(number, name, description, source, forward);
  rung.toolkit_headers = true;
  return rung;
}

/// exp2 with the scale folded into its argument.
Rung mma_rung(int number, const char* name, const char* description, const char* source,
              std::vector<Step> (*forward)(const RungConfig&)) {
  Rung rung = half_rung(number, name, description, source, forward);
  rung.folds_scale = true;
  return rung;
}

}  // namespace

std::vector<Rung> mma_rungs() {
  std::vector<Rung> rungs = {
      wmma_rung(9, "warp_wmma", "rung 09: tensor cores through wmma, one warp a block", "ladder/09_warp_wmma.cuh",
                warp_wmma_forward),
      wmma_rung(10, "block_wmma", "rung 10: four warps share K and V, products divided by columns",
                "ladder/10_block_wmma.cuh", block_wmma_forward),
      wmma_rung(11, "wmma_row_block", "rung 11: a warp owns its rows, O stays in registers",
                "ladder/11_wmma_row_block.cuh", wmma_row_block_forward),
      mma_rung(12, "mma", "rung 12: mma.sync and ldmatrix, S and P stay in registers", "ladder/12_mma.cuh",
               mma_forward),
      mma_rung(13, "mma_swizzle", "rung 13: tiles without bank conflicts", "ladder/13_mma_swizzle.cuh",
               mma_swizzle_forward),
      mma_rung(14, "mma_qreg", "rung 14: Q in registers, one barrier a tile, 16-byte stores", "ladder/14_mma_qreg.cuh",
               mma_qreg_forward),
      mma_rung(15, "mma_qreg_async", "rung 15: cp.async, two stages, 32 rows a warp", "ladder/15_mma_qreg_async.cuh",
               mma_qreg_async_forward),
  };
  rungs.back().tflops = 390;
  rungs.back().blocks_per_multiprocessor = 2;
  return rungs;
}

}  // namespace attend::cuda
