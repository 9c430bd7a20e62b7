// What ptxas says about a kernel, read from the compiler's log.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attend::cuda {

/// What one kernel takes, from `--ptxas-options=-v`. -1: the log does not say.
struct Resources {
  int registers = -1;          ///< per thread
  int spill_store_bytes = -1;  ///< per thread, as the next two
  int spill_load_bytes = -1;
  int stack_bytes = -1;
  int static_smem_bytes = 0;          ///< per block; the log is silent where there is none
  int barriers = 0;                   ///< likewise
  std::vector<std::string> warnings;  ///< lines: the compiler's, and ptxas' (C75xx: wgmma was serialised)
};

/// Reads the log of a program with one entry.
[[nodiscard]] Resources parse_ptxas_log(std::string_view log, std::string_view entry);

}  // namespace attend::cuda
