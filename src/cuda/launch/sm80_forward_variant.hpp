// What sm80_forward's kernel is compiled for, and which tile it takes for which facts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/launch/facts.hpp"
#include "kernels/sm80/sm80_forward_shape.cuh"

namespace attend::cuda {

struct Sm80ForwardVariant : Facts {
  std::int32_t copy_bytes = 16;  ///< all addresses, strides and row lengths are multiples of it: 16, 4 or 2
  Sm80ForwardTile tile = {};

  [[nodiscard]] int smem_bytes() const { return sm80_forward_smem_bytes(tile, head_dim, head_dim_v); }
  [[nodiscard]] int widest() const { return std::max(head_dim, head_dim_v); }
};

/// Tall tiles: two groups of 16 rows a warp as long as their sums leave registers for the scores, and two blocks on a
/// multiprocessor, or one of eight warps, so that one's softmax runs under another's products.
[[nodiscard]] Sm80ForwardTile sm80_tall_tile(const Facts& facts, int max_smem);

/// For short causal sequences: of a tall tile masks would hide half, and few of them run at once. Tall ones lose at 512
/// keys on an H200 (16384 rows of 2048 columns in all), not at 2048; where they begin to win has not been looked for.
[[nodiscard]] std::optional<Sm80ForwardTile> sm80_short_tile(const Facts& facts, int max_smem);

/// For heads with few rows: warps whose rows do not exist only load.
[[nodiscard]] Sm80ForwardTile sm80_low_tile(const Facts& facts, int max_smem);

/// For sums over so many keys that they are put aside: a place for them in shared memory.
[[nodiscard]] Sm80ForwardTile sm80_long_tile(const Facts& facts, int max_smem);

[[nodiscard]] Sm80ForwardVariant sm80_forward_variant(const Facts& facts, int copy_bytes, const Sm80ForwardTile& tile);

}  // namespace attend::cuda
