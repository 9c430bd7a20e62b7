// Reads the resources of a kernel from the log of ptxas.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attend::cuda {

/// Resources of one kernel, as reported by `--ptxas-options=-v`. -1: not in the log.
struct Resources {
  int registers = -1;          ///< per thread
  int spill_store_bytes = -1;  ///< per thread, like the next two
  int spill_load_bytes = -1;
  int stack_bytes = -1;
  int static_smem_bytes = 0;  ///< per block; the log omits the value 0
  int barriers = 0;           ///< per block; the log omits the value 0
  /// Warning lines of the compiler and of ptxas (C75xx: wgmma was serialised).
  std::vector<std::string> warnings;
};

/// Reads the log of a program with one entry function.
[[nodiscard]] Resources parse_ptxas_log(std::string_view log, std::string_view entry);

}  // namespace attend::cuda
