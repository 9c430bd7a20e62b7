// Rungs 16 to 18: float16 and bfloat16 with Hopper's warpgroup instructions.
#include "cuda/launch/rung.hpp"
#include "kernels/common/ladder_shapes.cuh"

namespace attend::cuda {
namespace {

constexpr int kWarpgroup = 128;

std::vector<Step> wgmma_forward(const RungConfig& config) {
  // Two warpgroups a block: k and v are read half as often as with one.
  constexpr int kBlockM = 128;
  constexpr int kBlockN = 128;
  return {{.function = "wgmma_forward",
           .block_m = kBlockM,
           .block_n = kBlockN,
           .threads = 2 * kWarpgroup,
           .smem_bytes = static_cast<unsigned>(qkv_bytes(kBlockM, kBlockN, 2, config.head_dim))}};
}

std::vector<Step> wgmma_tma_forward(const RungConfig& config) {
  constexpr int kBlockM = 128;
  constexpr int kBlockN = 128;
  constexpr int kStages = 2;
  return {{.function = "wgmma_tma_forward",
           .block_m = kBlockM,
           .block_n = kBlockN,
           .threads = 2 * kWarpgroup,
           .smem_bytes = static_cast<unsigned>(staged_bytes(kBlockM, kBlockN, kStages, config.head_dim)),
           .constants = {{"kStages", std::int64_t{kStages}}},
           .args = StepArgs::kForwardTma}};
}

std::vector<Step> wgmma_specialized_forward(const RungConfig& config) {
  constexpr int kConsumers = 3;
  constexpr int kBlockM = 64 * kConsumers;
  constexpr int kBlockN = 128;  // at d = 128, s and o take 64 registers of a consumer's 160 each
  constexpr int kStages = 2;
  return {{.function = "wgmma_specialized_forward",
           .block_m = kBlockM,
           .block_n = kBlockN,
           .threads = (1 + kConsumers) * kWarpgroup,
           .smem_bytes = static_cast<unsigned>(staged_bytes(kBlockM, kBlockN, kStages, config.head_dim)),
           .constants = {{"kStages", std::int64_t{kStages}},
                         {"kProducerRegisters", std::int64_t{24}},  // setmaxnreg has nothing below
                         {"kConsumerRegisters", std::int64_t{160}}},
           .args = StepArgs::kForwardTma}};
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
       .needs_alignment = true,
       .folds_scale = true,
       .instructions = kWgmma,
       .forward = wgmma_forward},
      {.number = 17,
       .name = "wgmma_tma",
       .description = "rung 17: tiles brought by the copy engine, waited for at mbarriers",
       .source = "ladder/17_wgmma_tma.cuh",
       .dtypes = {DType::kF16, DType::kBF16},
       .head_dims = {64, 128},
       .needs_alignment = true,
       .folds_scale = true,
       .instructions = kWgmma,
       .forward = wgmma_tma_forward},
      {.number = 18,
       .name = "wgmma_specialized",
       .description = "rung 18: a producer warpgroup that loads, three consumers that compute",
       .source = "ladder/18_wgmma_specialized.cuh",
       .dtypes = {DType::kF16, DType::kBF16},
       .head_dims = {64, 128},
       .needs_alignment = true,
       .folds_scale = true,
       .instructions = kWgmma,
       .forward = wgmma_specialized_forward},
  };
}

}  // namespace attend::cuda
