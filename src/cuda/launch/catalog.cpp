#include "cuda/launch/catalog.hpp"

#include <algorithm>
#include <iterator>
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

/// Each option alone, then all that go together.
std::vector<std::pair<MaskKind, OptionSet>> option_variants() {
  constexpr MaskKind kFull = MaskKind::kFull;
  return {{kFull, {.softcap = true}},
          {kFull, {.alibi = true}},
          {kFull, {.bool_mask = true}},
          {kFull, {.dropout = true}},
          {kFull, {.varlen = true}},
          {kFull, {.bias = DType::kF32, .dbias = DType::kF32}},
          {kFull, {.bias = DType::kBF16, .dbias = DType::kBF16, .dbias_over_rows = true}},
          {MaskKind::kWindow, {}},
          {MaskKind::kWindow, {.softcap = true, .alibi = true, .dropout = true, .varlen = true}},
          {MaskKind::kWindow,
           {.softcap = true,
            .alibi = true,
            .bool_mask = true,
            .dropout = true,
            .bias = DType::kF16,
            .dbias = DType::kF16}}};
}

/// A covering set, not the product: every dtype, the head_dims at which tiles change, every option.
std::vector<KernelSpec> option_rung_variants(const Rung& rung, const Arch& arch) {
  std::vector<KernelSpec> specs;
  RungConfig config = {.max_smem_per_block = arch.max_smem_per_block};
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  const auto add = [&](int head_dim, int head_dim_v) {
    config.head_dim = head_dim;
    config.head_dim_v = head_dim_v;
    add_variants(specs, rung, config, arch);
    config.dtype = kTypes[specs.size() % std::size(kTypes)];
  };
  for (const int head_dim : {40, 64, 96, 128, 256, 512}) {
    config.mask = head_dim % 64 == 0 ? MaskKind::kCausal : MaskKind::kFull;
    config.aligned = head_dim != 40;
    add(head_dim, head_dim);
  }
  add(192, 128);
  add(17, 300);
  for (const auto& [mask, options] : option_variants()) {
    config.mask = mask;
    config.options = options;
    add(64, 64);
  }
  add(128, 128);
  add(320, 200);
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
