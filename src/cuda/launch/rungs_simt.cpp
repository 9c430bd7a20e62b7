// Rungs 01 to 07: float32 on CUDA cores, as a textbook would write it.
#include "cuda/launch/ladder.hpp"

namespace attend::cuda {
namespace {

std::vector<Step> naive_forward(const RungConfig& /*config*/) {
  constexpr int kThreads = 128;  // four warps give the scheduler something to choose from
  return {{.function = "naive_forward", .block_m = kThreads, .block_n = 1, .threads = kThreads}};
}

}  // namespace

std::vector<Rung> simt_rungs() {
  return {
      {.number = 2,
       .name = "naive",
       .description = "rung 02: one thread for each query row, online softmax",
       .source = "ladder/02_naive.cuh",
       .dtypes = {DType::kF32},
       .any_head_dim_v = true,
       .claims_no_spills = true,
       .forward = naive_forward},
  };
}

}  // namespace attend::cuda
