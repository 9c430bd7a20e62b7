// The kernels of kernels/masks. They are compiled and loaded for the first mask with a given text.
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

/// Steps in launch order.
enum class MakerStep : std::uint8_t { kRanges, kKinds, kPatterns, kRows };
constexpr std::size_t kMakerSteps = 4;

/// The kernels of one program. The captures must be on the device, laid out as in the call.
class MaskKernels {
 public:
  MaskKernels(const core::MaskProgram& program, const std::vector<core::MaskCapture>& captures);

  /// One kernel per step, indexed by MakerStep. The kernel of kRanges is null if no capture has bounds. The pointers
  /// stay valid until the process ends.
  using Loaded = std::array<const LoadedVariant*, kMakerSteps>;
  [[nodiscard]] Loaded load(const DeviceInfo& device) const;

  /// Returns the specs of all kernels, for the tests.
  [[nodiscard]] std::vector<KernelSpec> specs(const char* arch) const;

 private:
  [[nodiscard]] KernelSpec spec(MakerStep step, const char* arch) const;
  [[nodiscard]] std::string_view text(MakerStep step) const;

  std::string text_, text_of_captures_;
  bool has_bounds_;  // whether a capture has bounds
};

}  // namespace attend::cuda
