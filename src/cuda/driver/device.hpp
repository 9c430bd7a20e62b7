// What is known about a GPU, and the guard that makes it current.
#pragma once

#include <optional>
#include <string>

#include "cuda/driver/arch.hpp"
#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Facts of one GPU that the choice of a kernel depends on.
struct DeviceInfo {
  int index = 0;  ///< as in CUDA_VISIBLE_DEVICES
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int num_multiprocessors = 0;
  int max_smem_per_block = 0;  ///< bytes a block may have after asking for them (static and dynamic)
  int max_smem_per_multiprocessor = 0;
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
  double memory_bytes_per_s = 0;  ///< peak, from clock and bus; 0: the driver does not say

  /// Its row of the capability table; null where the table has none.
  [[nodiscard]] const Arch* known_arch() const noexcept { return find_capability(major, minor); }
  /// The same. @throws Error (kUnsupported) where the table has none.
  [[nodiscard]] const Arch& arch() const { return arch_of_capability(major, minor); }
};

/// Number of GPUs. @throws Error (kMissingHardware) where there is no driver.
[[nodiscard]] int device_count();

/// Why there is no GPU to compute on, in one line; nothing where there is one. Never throws for lack of hardware.
[[nodiscard]] std::optional<std::string> missing_gpu();

/// Why the library cannot compute on GPU `index`, in one line; nothing where it can: no driver or no such GPU, a
/// compute capability that it does not know, no NVRTC, or one that does not compile for it. Never throws for lack of
/// hardware.
[[nodiscard]] std::optional<std::string> unusable_gpu(int index);

/// Facts of GPU `index`, asked once and kept. @throws Error (kInvalidArgument) where there is no such GPU.
[[nodiscard]] const DeviceInfo& device_info(int index);

/// The driver's name of GPU `index`.
[[nodiscard]] DeviceIndex device_handle(int index);

/// The primary context of GPU `index`, retained by the first call and kept.
[[nodiscard]] ContextHandle primary_context(int index);

/// Makes the primary context of a GPU current in this thread, and the former one again at its end. The primary context
/// is the one that every framework shares; it is retained once and kept.
class ContextGuard {
 public:
  explicit ContextGuard(int device);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  bool pushed_ = false;  // else it was current before
};

}  // namespace attend::cuda
