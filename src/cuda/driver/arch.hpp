// The GPU architectures that the library supports, and the instructions that each of them has. Code that chooses an
// instruction must look it up in this table instead of comparing versions, because a later architecture may not have an
// instruction of an earlier one. For example, sm_120 has no wgmma.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace attend::cuda {

/// One GPU architecture. `target` is the architecture name for the compiler. The suffix "a", as in "sm_90a", enables
/// instructions that only this architecture has.
struct Arch {
  const char* target;
  int major;  ///< compute capability of its devices
  int minor;
  int max_smem_per_block;  ///< maximum shared memory per block in bytes, static plus dynamic
  bool cp_async;           ///< cp.async, and mma.sync with the shape 16 x 8 x 16 and with bf16
  bool fp8_mma;            ///< mma.sync with e4m3 operands
  bool tma;                ///< cp.async.bulk, mbarrier transactions, clusters
  bool wgmma;              ///< wgmma and setmaxnreg, only on sm_90a
  bool tcgen05;            ///< tensor memory
};

/// Returns all architectures, oldest first.
[[nodiscard]] std::span<const Arch> known_archs() noexcept;

/// Returns the architecture with the name `target`. @throws Error (kInvalidArgument) if there is none. The message
/// contains all known names.
[[nodiscard]] const Arch& find_arch(std::string_view target);

/// Returns the architecture with this compute capability, or null if the table does not contain it.
[[nodiscard]] const Arch* find_capability(int major, int minor) noexcept;

/// Returns the architecture with this compute capability. @throws Error (kUnsupported) if the table does not contain
/// it.
[[nodiscard]] const Arch& arch_of_capability(int major, int minor);

/// Returns the names of all architectures as one string, e.g. "sm_80, sm_86, ...".
[[nodiscard]] std::string known_arch_names();

}  // namespace attend::cuda
