// A fake libcuda: it returns results, counts calls, records arguments, and fails on request.
#pragma once

#include <string>

#include "cuda/driver/driver_types.hpp"

namespace attend::test {

/// Calls that the fake has received. There is one instance per process. The counts are for single-threaded tests.
struct FakeCuda {
  std::string failing;  ///< symbol whose calls fail with CUDA_ERROR_INVALID_VALUE
  int current = 0;      ///< device whose context is current, plus 1; 0 means none
  int pushes = 0, pops = 0;
  int modules = 0;             ///< loaded and not unloaded
  int allocations = 0;         ///< made and not freed
  std::uint64_t pool[9] = {};  ///< attributes of the only memory pool
  int max_dynamic_smem = 0;
  int attribute_calls = 0;
  int launches = 0;
  cuda::DriverLaunchConfig launch = {};  ///< last launch
  unsigned cluster_x = 0;                ///< cluster size of the last launch; 0 means no cluster
};

}  // namespace attend::test

/// Signature of the library's symbol "attend_fake_cuda".
extern "C" attend::test::FakeCuda* attend_fake_cuda();
