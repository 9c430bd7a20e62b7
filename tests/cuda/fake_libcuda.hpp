// A fake libcuda. The fake returns fixed results, counts calls, records arguments, and fails on request.
#pragma once

#include <string>

#include "cuda/driver/driver_types.hpp"

namespace attend::test {

/// Records the calls that the fake driver has received. There is one instance per process. It is not thread-safe.
struct FakeCuda {
  std::string failing;  ///< name of the function whose calls fail with CUDA_ERROR_INVALID_VALUE; empty if none fails
  int current = 0;      ///< device whose context is current, plus 1; 0 if no context is current
  int pushes = 0, pops = 0;
  int modules = 0;             ///< modules that are loaded and not yet unloaded
  int allocations = 0;         ///< allocations that are not yet freed
  std::uint64_t pool[9] = {};  ///< attributes of the only memory pool, by CUmemPool_attribute
  int max_dynamic_smem = 0;
  int attribute_calls = 0;
  int launches = 0;
  cuda::DriverLaunchConfig launch = {};  ///< configuration of the last launch
  unsigned cluster_x = 0;                ///< cluster size of the last launch; 0 means that it had no cluster
};

}  // namespace attend::test

/// Returns the record. The tests look up this symbol in the fake library.
extern "C" attend::test::FakeCuda* attend_fake_cuda();
