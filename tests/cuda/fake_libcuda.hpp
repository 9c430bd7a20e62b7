// A libcuda without a GPU: it answers, counts, keeps what it was given, and fails where it is told to.
#pragma once

#include <string>

#include "cuda/driver/driver_types.hpp"

namespace attend::test {

/// What the fake has seen. One for the process; counts are for tests of one thread.
struct FakeCuda {
  std::string failing;  ///< the symbol whose calls fail with CUDA_ERROR_INVALID_VALUE
  int current = 0;      ///< device whose context is current, plus 1; 0: none
  int pushes = 0, pops = 0;
  int modules = 0;             ///< loaded and not unloaded
  int allocations = 0;         ///< made and not freed
  std::uint64_t pool[9] = {};  ///< the attributes of the one memory pool
  int max_dynamic_smem = 0;
  int attribute_calls = 0;
  int launches = 0;
  cuda::DriverLaunchConfig launch = {};  ///< the last one
  unsigned cluster_x = 0;                ///< of it; 0: no cluster
};

}  // namespace attend::test

/// What the symbol "attend_fake_cuda" of the library is.
extern "C" attend::test::FakeCuda* attend_fake_cuda();
