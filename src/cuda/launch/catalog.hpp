// Every kernel of the library with the variants that are worth looking at: what `attend compile` and the tests go
// through.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// One kernel by its name.
struct CatalogEntry {
  const char* name;                           ///< as --compute takes it
  const char* description;                    ///< one line
  std::function<bool(const Arch&)> supports;  ///< has the instructions it uses
  std::function<std::vector<KernelSpec>(const Arch&)> variants;
  bool claims_no_spills;  ///< a spill or a stack frame in any variant is a defect
};

/// All of them: the ladder in its order, then the production kernels.
[[nodiscard]] std::span<const CatalogEntry> catalog();

}  // namespace attend::cuda
