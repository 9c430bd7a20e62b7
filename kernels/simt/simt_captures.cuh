// Computes the gradients of the tensors that a custom score function reads, for any such function.
//
// Supports: everything that simt_forward.cuh supports, except parts of a larger problem. The order of additions is not
//           fixed (captured_shares.cuh).
// Work:     A block owns a tile of keys of one query head, and loops over the tiles of rows that see any of these keys.
//           It computes ds as in backward_tile.cuh. Here ds is the gradient of the function's value. Then it evaluates,
//           for each pair, the derivatives of the function by the tensors' elements.
// Memory:   see SimtBackwardShape. There are two tiles of scores: ds, and the input scores of the function.
// Called:   by src/cuda/launch/captured_steps.hpp, as a step of the backward pass of 'simt' and 'sm80_backward', if
//           gradients of captured tensors are requested.
#pragma once

#include "../attention/captured_shares.cuh"
#include "simt_backward.cuh"

namespace attend {

template <class Config>
using SimtCapturesShape = SimtBackwardShape<Config, SimtGradient::kCaptures>;

// Adds the contributions of one tile. ds and the input scores of the tile must be in shared memory. The lanes of a warp
// have neighbouring keys, because the captured elements of such keys are often neighbours.
template <class Config>
__device__ __forceinline__ void add_shares_of_tile(const BackwardOptionArgs& args, const TileRules<Config>& rules) {
  using Shape = SimtCapturesShape<Config>;
  using Tile = typename Shape::ScoreTile;
  static_assert(Config::kBlockN % kWarpThreads == 0 && Config::kBlockM * Config::kBlockN % Config::kThreads == 0);
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < Config::kBlockM * Config::kBlockN; n += Config::kThreads) {
    const int row = n / Config::kBlockN, key = n % Config::kBlockN;
    const auto of_pair = [&](int tile) {
      return *reinterpret_cast<const float*>(fp32_smem + tile + Tile::offset(row, key));
    };
    const float ds = of_pair(Shape::kDs);
    add_captured_shares(rules.custom_point(of_pair(Shape::kP), {row, 0, key, 0}), args.options.captured,
                        args.captured_gradients, is_seen(ds) ? ds : 0.0f);
  }
}

// Adds the contributions of a tile of kBlockN keys. The grid has one block for each tile of every query head of every
// sequence.
template <class Config>
__device__ void simt_captures(const BackwardOptionArgs& args) {
  using Shape = SimtCapturesShape<Config>;
  const BackwardArgs& base = args.base;
  const auto work = SimtBackwardWork<Config>::mine(base, base.seqlen_k, Config::kBlockN, base.num_heads_q, false);
  const SequenceSpan span = sequence_span<Config>(base, args.options, work.sequence);
  const int64 key = work.tile;
  if (span.seqlen_k <= key) return;
  const auto me = SimtThread<Shape>::mine();
  const SimtHead<Config> head = {base, span, work.head, key_head_of(base, work.head)};
  const auto rules =
      ScoreRules<Config>::make(args.options, base.scale, span, work.sequence, work.head, base.num_heads_q);
  const SavedRow* saved = saved_rows(args, span, work.head);
  const KeyRange rows = rules.window.rows_of_keys(key, min(key + Config::kBlockN, span.seqlen_k));
  load_owned<Shape>(head, key);
  const auto next_tile = [&](int64 from) {
    return rules.map.template next_rows<Config::kBlockM, Config::kBlockN>(from, key, rows.end);
  };
#pragma unroll 1
  for (int64 row = next_tile(rows.begin / Config::kBlockM * Config::kBlockM); row < rows.end;
       row = next_tile(row + Config::kBlockM)) {
    __syncthreads();  // waits until every warp has finished with the previous tiles, which may then be overwritten
    load_saved<Shape>(saved, row, span.seqlen_q);
    static_cast<void>(load_streamed<Shape>(head, row, 0));
    __syncthreads();  // waits until the tiles are loaded; all warps may then read them
    typename Shape::Scores ds = {};
    gradient_tile(ds, head, rules, args.options, row, key, me);
    __syncthreads();  // waits until ds and the input scores are complete; all warps may then read them
    add_shares_of_tile<Config>(args, rules.tile(row, key));
  }
}

}  // namespace attend
