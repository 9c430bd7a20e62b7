// Properties of a GPU, and a guard that makes it current.
#pragma once

#include <optional>
#include <string>

#include "cuda/driver/arch.hpp"
#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Properties of one GPU that the choice of a kernel depends on.
struct DeviceInfo {
  int index = 0;  ///< index under CUDA_VISIBLE_DEVICES
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int num_multiprocessors = 0;
  /// Largest shared memory of a block that opts in, static plus dynamic, in bytes.
  int max_smem_per_block = 0;
  int max_smem_per_multiprocessor = 0;
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
  /// Peak memory bandwidth computed from clock and bus width; 0 if the driver does not report them.
  double memory_bytes_per_s = 0;

  /// Returns the GPU's row of the architecture table, or null if the table does not contain it.
  [[nodiscard]] const Arch* known_arch() const noexcept { return find_capability(major, minor); }
  /// Returns the GPU's row of the architecture table. @throws Error (kUnsupported) if the table does not contain it.
  [[nodiscard]] const Arch& arch() const { return arch_of_capability(major, minor); }
};

/// Returns the number of GPUs. @throws Error (kMissingHardware) if there is no driver.
[[nodiscard]] int device_count();

/// Returns the reason why there is no GPU, in one line, or nothing if there is one. Does not throw if hardware is
/// missing.
[[nodiscard]] std::optional<std::string> missing_gpu();

/// Returns the reason why the library cannot compute on GPU `index`, in one line, or nothing if it can. Reasons are: no
/// driver, no such GPU, an unknown compute capability, no NVRTC, or an NVRTC that does not support the GPU. Does not
/// throw if hardware is missing.
[[nodiscard]] std::optional<std::string> unusable_gpu(int index);

/// Returns the properties of GPU `index`. Queries them once and caches them. @throws Error (kInvalidArgument) if there
/// is no such GPU.
[[nodiscard]] const DeviceInfo& device_info(int index);

/// Returns the driver's handle of GPU `index`.
[[nodiscard]] DeviceIndex device_handle(int index);

/// Returns the primary context of GPU `index`. The first call retains it for the life of the process.
[[nodiscard]] ContextHandle primary_context(int index);

/// Makes the primary context of a GPU current in this thread and restores the previous context in the destructor. All
/// frameworks share the primary context. It is retained once and never released.
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
