#include "cuda/launch/catalog.hpp"

#include <algorithm>
#include <utility>

#include "cuda/launch/ladder.hpp"

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

std::vector<CatalogEntry> assemble() {
  std::vector<CatalogEntry> entries;
  for (const Rung& rung : ladder()) {
    entries.push_back({rung.name, rung.description,
                       [&rung](const Arch& arch) { return rung.supports == nullptr || rung.supports(arch); },
                       [&rung](const Arch& arch) { return rung_variants(rung, arch); }, rung.claims_no_spills});
  }
  return entries;
}

}  // namespace

std::span<const CatalogEntry> catalog() {
  static const auto* entries = new std::vector<CatalogEntry>(assemble());
  return *entries;
}

}  // namespace attend::cuda
