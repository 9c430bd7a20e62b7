// Runs attend::decode with GPU kernels on the CPU.
#pragma once

#include "attend/serving.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// The properties of a GPU that affect the choice or the results of a decode kernel.
struct EmulatedGpu {
  int max_smem = 232448;
  int multiprocessors = 3;
  unsigned seed = 1;             ///< seed that selects the order in which threads run
  bool looks_large = true;       ///< selects the kernel as if there were few work items per multiprocessor
  bool many_units = false;       ///< uses 64-bit indices for work items, even if there are few
  bool has_copy_engine = false;  ///< the GPU can load boxes (rectangles of keys that one TMA copy loads)
  bool has_wgmma = false;    ///< the GPU has wgmma; requires has_copy_engine, and calls whose tiles all have 64 rows
  bool late_arrays = false;  ///< lengths, offsets and tables get their final values when a block waits for the
                             ///< previous kernel
  bool leaves_long_rows =
      false;  ///< skips sequences with more than 64 rows; the kernel for such sequences does not run here
};

/// Returns a function that runs decode() on the emulated GPU. Each kernel is compiled when it is first used, and then
/// kept.
[[nodiscard]] Decode emulated_decode(const EmulatedGpu& gpu = {});

/// Returns the number of kernels that were compiled so far.
[[nodiscard]] int emulated_kernels();

}  // namespace attend::test
