// What sm90_forward's kernel is compiled for, and which tile it takes for which facts.
#pragma once

#include <cstdint>

#include "cuda/launch/facts.hpp"
#include "kernels/sm90/sm90_forward_shape.cuh"

namespace attend::cuda {

struct Sm90ForwardVariant : Facts {
  Sm90ForwardTile tile = {};
  std::int32_t puts_aside = 0;  ///< sums over very many keys are cut into pieces: kernels/sm90/sm90_long_sum.cuh
  std::int32_t bias_tiles = 0;  ///< the copy engine brings the bias

  [[nodiscard]] int smem_bytes() const {
    return sm90_forward_smem_bytes(tile.consumers, tile.block_n, tile.stages, tile.q_buffers, head_dim, head_dim_v,
                                   bias_tiles != 0, has(option::kDropout));
  }
};

/// Beyond this head_dim registers spill with a bias, or with a mask and other rules.
constexpr int kSm90MostCrowdedHeadDim = 192;

/// Are there rules that read memory for each score, and others beside them?
[[nodiscard]] bool sm90_is_crowded(const Facts& facts);

/// Does the copy engine bring the bias, if its tensor map can be made (bias_map_lack())?
[[nodiscard]] bool sm90_takes_bias_tiles(const Facts& facts);

/// Row tiles as tall as registers allow; docs/hopper_forward.md has the measurements behind it.
/// @param bias_tiles  the copy engine brings the bias
[[nodiscard]] Sm90ForwardVariant sm90_forward_tall(const Facts& facts, std::int64_t seqlen_k, bool bias_tiles);

/// One consumer: for heads with few rows.
[[nodiscard]] Sm90ForwardVariant sm90_forward_low(const Facts& facts, bool bias_tiles);

/// How blocks come to their tiles.
[[nodiscard]] Sm90Schedule sm90_forward_schedule(const Facts& facts, std::int64_t seqlen_k);

}  // namespace attend::cuda
