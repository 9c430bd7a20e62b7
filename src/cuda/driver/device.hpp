// The properties of a GPU, and a guard that makes the GPU's context current.
#pragma once

#include <optional>
#include <string>

#include "cuda/driver/arch.hpp"
#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Properties of one GPU on which the choice of a kernel depends.
struct DeviceInfo {
  int index = 0;  ///< index of the GPU among those that CUDA_VISIBLE_DEVICES selects
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int num_multiprocessors = 0;
  /// Largest shared memory of a block in bytes: static plus dynamic, if the kernel opts in to more than 48 KB.
  int max_smem_per_block = 0;
  int max_smem_per_multiprocessor = 0;
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
  /// Peak memory bandwidth, computed from the memory clock and the bus width. 0 if the driver does not report them.
  double memory_bytes_per_s = 0;

  /// Returns the GPU's row in the table of architectures, or null if the table has no row for it.
  [[nodiscard]] const Arch* known_arch() const noexcept { return find_capability(major, minor); }
  /// Returns the GPU's row in the table of architectures. @throws Error (kUnsupported) if the table has no row for it.
  [[nodiscard]] const Arch& arch() const { return arch_of_capability(major, minor); }
};

/// Returns the number of GPUs. @throws Error (kMissingHardware) if there is no driver.
[[nodiscard]] int device_count();

/// Returns, in one line, the reason why there is no GPU. Returns nothing if there is a GPU. Does not throw an Error for
/// missing hardware.
[[nodiscard]] std::optional<std::string> missing_gpu();

/// Returns, in one line, the reason why the library cannot use GPU `index`. Returns nothing if it can. Possible reasons
/// are a missing driver, a missing GPU, an unknown compute capability, a missing NVRTC, and an NVRTC that does not
/// support the GPU. Does not throw an Error for missing hardware.
[[nodiscard]] std::optional<std::string> unusable_gpu(int index);

/// Returns the properties of GPU `index`. The first call queries the driver and caches the result.
/// @throws Error (kInvalidArgument) if there is no such GPU.
[[nodiscard]] const DeviceInfo& device_info(int index);

/// Returns the driver's handle of GPU `index`.
[[nodiscard]] DeviceIndex device_handle(int index);

/// Returns the primary context of GPU `index`. The first call retains the context until the process ends.
[[nodiscard]] ContextHandle primary_context(int index);

/// Makes the primary context of a GPU current in this thread. The destructor restores the previous context. All
/// frameworks in a process share the primary context. The library retains it once and never releases it.
class ContextGuard {
 public:
  explicit ContextGuard(int device);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  bool pushed_ = false;  // false if the context was already current
};

}  // namespace attend::cuda
