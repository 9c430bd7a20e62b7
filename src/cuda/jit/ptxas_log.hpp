// Reads the resource usage of a kernel from the log of ptxas.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attend::cuda {

/// Resource usage of one kernel, as reported by `--ptxas-options=-v`. A value is -1 if the log does not contain it.
struct Resources {
  int registers = -1;          ///< per thread
  int spill_store_bytes = -1;  ///< per thread, like the next two values
  int spill_load_bytes = -1;
  int stack_bytes = -1;
  int static_smem_bytes = 0;  ///< per block; the log omits the value 0
  int barriers = 0;           ///< per block; the log omits the value 0
  /// Warnings of the compiler and of ptxas. For example, a code C75xx means that wgmma instructions were serialised.
  std::vector<std::string> warnings;
};

/// Returns the resource usage of the kernel function `entry`. The program must have only one kernel function.
[[nodiscard]] Resources parse_ptxas_log(std::string_view log, std::string_view entry);

}  // namespace attend::cuda
