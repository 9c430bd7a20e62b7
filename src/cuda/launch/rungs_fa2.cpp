// Rung 08: float32 on CUDA cores, as fast as they go.
#include "cuda/launch/ladder.hpp"

namespace attend::cuda {

std::vector<Rung> fa2_rungs() {
  return {};
}

}  // namespace attend::cuda
