#include "cuda/masks/mask_kernels.hpp"

#include <algorithm>

#include "cuda/jit/hash.hpp"
#include "cuda/masks/mask_text.hpp"
#include "kernels/masks/mask_args.cuh"

namespace attend::cuda {
namespace {

/// Key of a kernel in the cache. The 128-bit hash represents the source text of the mask function.
struct Variant {
  Digest text;
  std::uint64_t step;
};

struct Names {
  const char* name;
  const char* source;
};

constexpr Names kNames[kMakerSteps] = {{"mask_ranges", "masks/mask_ranges.cuh"},
                                       {"mask_kinds", "masks/mask_kinds.cuh"},
                                       {"mask_patterns", "masks/mask_patterns.cuh"},
                                       {"mask_rows", "masks/mask_rows.cuh"}};

Variant variant_of(MakerStep step, std::string_view text) {
  Hasher hasher;
  hasher.add(text);
  return {hasher.digest(), static_cast<std::uint64_t>(step)};
}

}  // namespace

MaskKernels::MaskKernels(const core::MaskProgram& program, const std::vector<core::MaskCapture>& captures)
    : text_(mask_text(program.source, captures)),
      text_of_captures_(mask_text({}, captures)),
      has_bounds_(std::any_of(captures.begin(), captures.end(), [](const auto& one) { return one.has_bounds; })) {}

std::string_view MaskKernels::text(MakerStep step) const {
  // This text does not depend on the mask function, so several mask functions share the kernel.
  if (step == MakerStep::kRanges) return text_of_captures_;
  return step == MakerStep::kRows ? std::string_view() : text_;
}

MaskKernels::Loaded MaskKernels::load(const DeviceInfo& device) const {
  // Never destroyed, because launches may continue during process exit.
  static auto* kernels = new KernelCache<Variant>();
  Loaded loaded = {};
  for (std::size_t n = 0; n < kMakerSteps; ++n) {
    const auto step = static_cast<MakerStep>(n);
    if (step == MakerStep::kRanges && !has_bounds_) continue;
    loaded[n] =
        &kernels->get(device, variant_of(step, text(step)), [&](const Arch& arch) { return spec(step, arch.target); });
  }
  return loaded;
}

KernelSpec MaskKernels::spec(MakerStep step, const char* arch) const {
  const Names& names = kNames[static_cast<std::size_t>(step)];
  return {.name = names.name,
          .source = names.source,
          .function = names.name,
          .args = MaskMakerArgs::kTypeName,
          .config = {{"kThreads", kMakerThreads}},
          .arch = arch,
          .options = {"--fmad=false"},  // products and sums are rounded separately, as on the host
          .custom_score = std::string(text(step))};
}

std::vector<KernelSpec> MaskKernels::specs(const char* arch) const {
  std::vector<KernelSpec> all;
  for (std::size_t n = 0; n < kMakerSteps; ++n) all.push_back(spec(static_cast<MakerStep>(n), arch));
  return all;
}

}  // namespace attend::cuda
