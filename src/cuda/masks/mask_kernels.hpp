// The kernels of kernels/masks, which build a block mask. They are compiled and loaded when a mask function is first
// used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/mask_program.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/serving/kernel_cache.hpp"

namespace attend::cuda {

/// The kernels that build a mask, in launch order.
enum class MakerStep : std::uint8_t { kRanges, kKinds, kPatterns, kRows };
constexpr std::size_t kMakerSteps = 4;

/// The kernels for one mask function. Its captures must be on the GPU, with the same memory layout as in the call.
class MaskKernels {
 public:
  MaskKernels(const core::MaskProgram& program, const std::vector<core::MaskCapture>& captures);

  /// One kernel for each MakerStep. The kernel for kRanges is null if no capture has bounds. The pointers stay valid
  /// until the process ends.
  using Loaded = std::array<const LoadedVariant*, kMakerSteps>;
  [[nodiscard]] Loaded load(const DeviceInfo& device) const;

  /// Returns the specs of all kernels. Used by the tests.
  [[nodiscard]] std::vector<KernelSpec> specs(const char* arch) const;

 private:
  [[nodiscard]] KernelSpec spec(MakerStep step, const char* arch) const;
  [[nodiscard]] std::string_view text(MakerStep step) const;

  std::string text_, text_of_captures_;
  bool has_bounds_;  // whether at least one capture has bounds
};

}  // namespace attend::cuda
