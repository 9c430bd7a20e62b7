// The GPU architectures that the library knows, and what each can do. Whoever chooses an instruction asks this table;
// "newer than" is no answer: a later architecture may lack what an earlier one had (sm_120 has no wgmma).
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace attend::cuda {

/// One architecture. `target` is what is compiled for ("sm_90a": with the instructions of exactly that chip).
struct Arch {
  const char* target;
  int major;  ///< compute capability of the devices it runs on
  int minor;
  int max_smem_per_block;  ///< bytes of shared memory that a block may have, static and dynamic
  bool cp_async;           ///< cp.async, mma.sync with 16 x 8 x 16 and bf16
  bool fp8_mma;            ///< mma.sync with e4m3
  bool tma;                ///< cp.async.bulk, mbarrier transactions, clusters
  bool wgmma;              ///< wgmma and setmaxnreg: sm_90a and nothing else
  bool tcgen05;            ///< tensor memory
};

/// All of them, oldest first.
[[nodiscard]] std::span<const Arch> known_archs() noexcept;

/// The architecture called `target`. @throws Error (kInvalidArgument) naming it and those that are known.
[[nodiscard]] const Arch& find_arch(std::string_view target);

/// The architecture of a device of this compute capability, or null where it is not in the table.
[[nodiscard]] const Arch* find_capability(int major, int minor) noexcept;

/// The same. @throws Error (kUnsupported) where it is not in the table.
[[nodiscard]] const Arch& arch_of_capability(int major, int minor);

/// "sm_80, sm_86, ..."
[[nodiscard]] std::string known_arch_names();

}  // namespace attend::cuda
