// The kernels of kernels/masks, compiled and loaded at the first mask of a text.
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

/// In the order in which they run.
enum class MakerStep : std::uint8_t { kRanges, kKinds, kPatterns, kRows };
constexpr std::size_t kMakerSteps = 4;

/// Of a program, whose captures lie on the device as they do in the call.
class MaskKernels {
 public:
  MaskKernels(const core::MaskProgram& program, const std::vector<core::MaskCapture>& captures);

  /// Each step's, by its number. That of the ranges may be null: no capture has bounds. Good for ever.
  using Loaded = std::array<const LoadedVariant*, kMakerSteps>;
  [[nodiscard]] Loaded load(const DeviceInfo& device) const;

  /// Every kernel, for the tests.
  [[nodiscard]] std::vector<KernelSpec> specs(const char* arch) const;

 private:
  [[nodiscard]] KernelSpec spec(MakerStep step, const char* arch) const;
  [[nodiscard]] std::string_view text(MakerStep step) const;

  std::string text_, text_of_captures_;
  bool has_bounds_;  // of a capture
};

}  // namespace attend::cuda
