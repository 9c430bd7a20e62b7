#include "cuda/launch/catalog.hpp"

#include <algorithm>
#include <utility>

#include "cuda/launch/ladder.hpp"
#include "cuda/launch/production.hpp"

namespace attend::cuda {
namespace {

bool is_allowed(const Rung& rung, int head_dim) {
  const auto& dims = rung.head_dims;
  return dims.empty() ? head_dim <= rung.max_head_dim : std::find(dims.begin(), dims.end(), head_dim) != dims.end();
}

/// Those that are not there yet.
void add_steps(std::vector<KernelSpec>& specs, const Rung& rung, const std::vector<Step>& steps,
               const RungConfig& config, const Arch& arch) {
  for (const Step& step : steps) {
    KernelSpec spec = step_spec(rung, step, config, arch);
    const auto is_same = [&](const KernelSpec& other) { return identity(other) == identity(spec); };
    if (std::none_of(specs.begin(), specs.end(), is_same)) specs.push_back(std::move(spec));
  }
}

void add_variants(std::vector<KernelSpec>& specs, const Rung& rung, RungConfig config, const Arch& arch) {
  for (const bool many_rows : {true, false}) {
    config.many_rows = many_rows;
    add_steps(specs, rung, rung.forward(config), config, arch);
    if (rung.backward != nullptr) add_steps(specs, rung, rung.backward(config), config, arch);
  }
}

std::vector<KernelSpec> rung_variants(const Rung& rung, const Arch& arch) {
  std::vector<KernelSpec> specs;
  for (const DType dtype : rung.dtypes) {
    for (const int head_dim : {64, 128}) {
      if (!is_allowed(rung, head_dim)) continue;
      for (const MaskKind mask : {MaskKind::kFull, MaskKind::kCausal}) {
        const RungConfig config = {.dtype = dtype,
                                   .head_dim = head_dim,
                                   .head_dim_v = head_dim,
                                   .mask = mask,
                                   .max_smem_per_block = arch.max_smem_per_block};
        add_variants(specs, rung, config, arch);
      }
    }
  }
  return specs;
}

/// A covering set, not the product: every dtype, the head_dims at which tiles change, each option alone, and all that go
/// together.
std::vector<RungConfig> option_configs() {
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
  constexpr MaskKind kFull = MaskKind::kFull, kCausal = MaskKind::kCausal, kWindow = MaskKind::kWindow;
  const auto config = [](DType dtype, int head_dim, int head_dim_v, MaskKind mask, OptionSet options = {}) {
    return RungConfig{.dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim_v, .mask = mask, .options = options};
  };
  std::vector<RungConfig> configs = {
      config(kF16, 64, 64, kCausal),
      config(kF32, 128, 128, kCausal),
      config(kF32, 40, 40, kFull, {.softcap = true}),
      config(kBF16, 96, 96, kFull, {.alibi = true}),
      config(kF16, 256, 256, kFull, {.dropout = true}),
      config(kBF16, 512, 512, kFull, {.varlen = true}),
      config(kF16, 17, 300, kFull, {.bool_mask = true}),
      config(kBF16, 64, 64, kWindow, {.bias = kF32, .dbias = kBF16, .dbias_over_rows = true}),
      config(kF32, 64, 64, kWindow, {.softcap = true, .alibi = true, .dropout = true, .varlen = true}),
      config(kBF16, 128, 128, kWindow,
             {.softcap = true, .alibi = true, .bool_mask = true, .dropout = true, .bias = kF16, .dbias = kF16})};
  for (RungConfig& c : configs) c.aligned = c.head_dim % 16 == 0;
  for (const std::size_t plain : {0, 1}) {
    configs.push_back(configs[plain]);
    configs.back().few_rows = true;
  }
  return configs;
}

std::vector<KernelSpec> option_rung_variants(const Rung& rung, const Arch& arch) {
  std::vector<KernelSpec> specs;
  for (RungConfig config : option_configs()) {
    config.max_smem_per_block = arch.max_smem_per_block;
    add_variants(specs, rung, config, arch);
  }
  return specs;
}

std::vector<KernelSpec> variants(const Rung& rung, const Arch& arch) {
  return rung.takes_options ? option_rung_variants(rung, arch) : rung_variants(rung, arch);
}

std::vector<CatalogEntry> assemble() {
  std::vector<CatalogEntry> entries;
  const auto add = [&entries](const Rung& rung) {
    entries.push_back({rung.name, rung.description,
                       [&rung](const Arch& arch) { return rung.supports == nullptr || rung.supports(arch); },
                       [&rung](const Arch& arch) { return variants(rung, arch); }, rung.claims_no_spills});
  };
  for (const Rung& rung : ladder()) add(rung);
  add(simt_kernels());
  return entries;
}

}  // namespace

std::span<const CatalogEntry> catalog() {
  static const auto* entries = new std::vector<CatalogEntry>(assemble());
  return *entries;
}

}  // namespace attend::cuda
