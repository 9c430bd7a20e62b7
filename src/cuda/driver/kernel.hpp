// A kernel that is loaded from machine code (a cubin), and its launch.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// Shape of one launch.
struct LaunchShape {
  Dim3 grid = {};                   ///< in blocks; x < 2^31, y and z < 65536
  Dim3 block = {};                  ///< in threads
  Dim3 cluster = {};                ///< blocks per cluster; must divide the grid. {1, 1, 1} means no clusters
  unsigned dynamic_smem_bytes = 0;  ///< may exceed 48 KiB
  /// Whether the kernel may start before the previous kernel in the stream has ended. If so, the kernel itself must
  /// wait for the previous kernel.
  bool overlaps_previous = false;
};

/// A kernel that is loaded on a GPU. Thread-safe.
class Kernel {
 public:
  /// Loads `cubin` into the primary context of `device` and finds its function `entry`.
  /// @param name  name of the kernel with its Config, for error messages
  /// @param dynamic_smem_bytes  largest dynamic shared memory of any launch. The limit is set once, in this
  ///         constructor. If each launch set the limit, a thread with a small launch could lower it while another
  ///         thread starts a large launch
  Kernel(int device, std::span<const std::byte> cubin, const std::string& entry, std::string name,
         unsigned dynamic_smem_bytes);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Launches the kernel asynchronously on `stream`. The GPU's context must be current (ContextGuard).
  /// @param arguments  addresses of the kernel's parameters, in order. The driver copies the parameters before this
  ///         function returns
  /// @throws Error (kInternal) if the launch fails. The message contains the kernel, the driver call, CUDA's error and
  ///         the launch shape.
  void launch(const LaunchShape& shape, std::span<void*> arguments, StreamHandle stream) const;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] FunctionHandle function() const noexcept { return function_; }

 private:
  int device_ = 0;
  std::string name_;
  unsigned dynamic_smem_bytes_ = 0;
  ModuleHandle module_ = nullptr;
  FunctionHandle function_ = nullptr;
};

/// Describes a tensor with up to five dimensions from which a tensor map is made. The first dimension is contiguous.
struct TensorMapSpec {
  static constexpr int kMaxRank = 5;

  TensorMapType type = TensorMapType::kBfloat16;
  int rank = 2;
  DevicePointer address = 0;          ///< a multiple of 16
  std::uint64_t dims[kMaxRank] = {};  ///< in elements
  /// Strides of all dimensions except the first, in bytes; multiples of 16.
  std::uint64_t strides[kMaxRank - 1] = {};
  std::uint32_t box[kMaxRank] = {};  ///< number of elements that one TMA copy loads in each dimension; at most 256
  TensorMapSwizzle swizzle = TensorMapSwizzle::k128Bytes;
  TensorMapPromotion promotion = TensorMapPromotion::k256Bytes;
};

/// Returns the tensor map for `spec`. TMA loads elements outside the tensor as 0.
/// @throws Error (kInternal) if the driver refuses `spec`; the message contains all its values. Error
///         (kMissingHardware) if the driver is too old.
[[nodiscard]] TensorMap encode_tensor_map(const TensorMapSpec& spec);

}  // namespace attend::cuda
