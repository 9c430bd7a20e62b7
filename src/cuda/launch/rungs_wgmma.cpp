// Rungs 16 to 18: float16 and bfloat16 with Hopper's warpgroup instructions.
#include "cuda/launch/ladder.hpp"

namespace attend::cuda {

std::vector<Rung> wgmma_rungs() {
  return {};
}

}  // namespace attend::cuda
