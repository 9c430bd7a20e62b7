// attend::decode by the kernels of a GPU, run on the CPU.
#pragma once

#include "attend/serving.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// A GPU as far as a decode kernel sees it.
struct EmulatedGpu {
  int max_smem = 232448;
  int multiprocessors = 3;
  unsigned seed = 1;             ///< of the order in which threads run
  bool looks_large = true;       ///< to the choice of a kernel: there are few items for each multiprocessor
  bool many_units = false;       ///< work is numbered in 64 bits, however little there is
  bool has_copy_engine = false;  ///< that brings boxes of keys
  bool has_wgmma = false;        ///< beside the copy engine: for tiles of 64 rows, and all calls of the test have those
  bool late_arrays = false;      ///< lengths, offsets and tables are others until a block waits for the kernel before
  bool leaves_long_rows = false;  ///< sequences with more than 64 rows are another kernel's, which does not run here
};

/// Kernels are compiled when they are first wanted, and kept.
[[nodiscard]] Decode emulated_decode(const EmulatedGpu& gpu = {});

/// How many there are.
[[nodiscard]] int emulated_kernels();

}  // namespace attend::test
