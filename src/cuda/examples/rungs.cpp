// The examples of the rungs.
#include "cuda/examples/family_examples.hpp"

namespace attend::cuda {

std::vector<Variant> rung_examples(const Rung& rung, const Arch& arch) {
  std::vector<Variant> variants;
  const auto add = [&](const Facts& facts) {
    for (const int many_rows : {1, 0}) {
      RungConfig config = {facts};
      config.max_smem_per_block = arch.max_smem_per_block;
      config.many_rows = many_rows;
      variants.emplace_back(config);
      config.is_backward = 1;
      if (rung.backward != nullptr) variants.emplace_back(config);
    }
  };
  std::vector<int> head_dims = rung.head_dims.empty() ? std::vector{32, 64, 96, 128} : rung.head_dims;
  // With 64 KB of shared memory, the tallest tiles are used only for narrow rows, so a head_dim of 16 is added.
  if (!arch.cp_async) head_dims.insert(head_dims.begin(), 16);
  for (const DType dtype : rung.dtypes) {
    for (const int head_dim : head_dims) {
      Facts facts = {.element = element_of(dtype), .head_dim = head_dim, .head_dim_v = head_dim};
      add(facts);
      facts.mask = MaskKind::kCausal;
      if (head_dim % 64 == 0) add(facts);
      facts.negate_scores = rung.folds_scale;
      facts.aligned = rung.needs_alignment;
      if (rung.folds_scale || !rung.needs_alignment) add(facts);
    }
  }
  return variants;
}

}  // namespace attend::cuda
