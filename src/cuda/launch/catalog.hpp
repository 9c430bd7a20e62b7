// Every kernel of the library with the variants that are worth looking at: what `attend compile` and the tests go
// through.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// One kernel by its name.
struct CatalogEntry {
  const char* name;               ///< as --compute takes it
  const char* description;        ///< one line
  bool (*supports)(const Arch&);  ///< has the instructions it uses
  std::vector<KernelSpec> (*variants)(const Arch&);
  bool claims_no_spills;  ///< a spill or a stack frame in any variant is a defect
};

/// All of them, in the ladder's order.
[[nodiscard]] std::span<const CatalogEntry> catalog() noexcept;

}  // namespace attend::cuda
