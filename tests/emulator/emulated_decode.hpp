// attend::decode with GPU kernels, run on the CPU.
#pragma once

#include "attend/serving.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// The properties of a GPU that a decode kernel depends on.
struct EmulatedGpu {
  int max_smem = 232448;
  int multiprocessors = 3;
  unsigned seed = 1;             ///< seed for the order in which threads run
  bool looks_large = true;       ///< the kernel is chosen as if there were few work items per multiprocessor
  bool many_units = false;       ///< work items have 64-bit indices, however few there are
  bool has_copy_engine = false;  ///< it loads boxes of keys
  bool has_wgmma = false;        ///< needs the copy engine; used for tiles of 64 rows, which all calls of the test have
  bool late_arrays = false;      ///< lengths, offsets and tables change when a block waits for the previous kernel
  bool leaves_long_rows = false;  ///< leaves sequences of more than 64 rows to another kernel, which does not run here
};

/// Returns a decode that compiles each kernel on first use and keeps it.
[[nodiscard]] Decode emulated_decode(const EmulatedGpu& gpu = {});

/// Returns the number of compiled kernels.
[[nodiscard]] int emulated_kernels();

}  // namespace attend::test
