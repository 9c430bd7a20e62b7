// Rungs 09 to 15: float16 and bfloat16 on tensor cores, with the instructions that Ampere brought.
#include "cuda/launch/ladder.hpp"

namespace attend::cuda {

std::vector<Rung> mma_rungs() {
  return {};
}

}  // namespace attend::cuda
