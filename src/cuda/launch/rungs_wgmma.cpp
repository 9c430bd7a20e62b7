// Rungs 16 to 18, which compute float16 and bfloat16 with Hopper's warpgroup instructions.
#include "cuda/launch/rung.hpp"
#include "kernels/ladder/pieces/ladder_shapes.cuh"

namespace attend::cuda {
namespace {

constexpr int kWarpgroup = 128;  // threads per warpgroup
constexpr int kBlockN = 128;
constexpr int kStages = 2;

/// A block has two warpgroups. With only one warpgroup per block, k and v would be read twice as often.
std::vector<Step> wgmma_forward(const RungConfig& config) {
  constexpr int kBlockM = 128;
  return {{.tile = {.block_m = kBlockM,
                    .block_n = kBlockN,
                    .threads = 2 * kWarpgroup,
                    .smem_bytes = qkv_bytes(kBlockM, kBlockN, kStages, config.head_dim)}}};
}

/// Returns a launch in which each consumer warpgroup processes 64 query rows.
Step tma_step(int consumers, int producers, const RungConfig& config) {
  const int block_m = 64 * consumers;
  return {.tile = {.block_m = block_m,
                   .block_n = kBlockN,
                   .threads = (producers + consumers) * kWarpgroup,
                   .smem_bytes = staged_bytes(block_m, kBlockN, kStages, config.head_dim)},
          .constants = {{"kStages", kStages}},
          .takes_maps = true};
}

std::vector<Step> wgmma_tma_forward(const RungConfig& config) {
  return {tma_step(2, 0, config)};
}

std::vector<Step> wgmma_specialized_forward(const RungConfig& config) {
  Step step = tma_step(3, 1, config);
  step.constants.push_back({"kProducerRegisters", 24});   // the smallest value that setmaxnreg allows
  step.constants.push_back({"kConsumerRegisters", 160});  // s and o need 64 registers each at head_dim 128
  return {step};
}

}  // namespace

std::vector<Rung> wgmma_rungs() {
  std::vector<Rung> rungs = {
      half_rung(16, "wgmma", "rung 16: warpgroup matrix products from swizzled shared memory", wgmma_forward),
      half_rung(17, "wgmma_tma", "rung 17: tiles loaded by the copy engine (TMA), with mbarriers", wgmma_tma_forward),
      half_rung(18, "wgmma_specialized",
                "rung 18: one producer warpgroup for loads, three consumer warpgroups for computation",
                wgmma_specialized_forward)};
  for (Rung& rung : rungs) rung.instructions = &Arch::wgmma;
  return rungs;
}

}  // namespace attend::cuda
