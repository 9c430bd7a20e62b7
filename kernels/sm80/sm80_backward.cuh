// sm80_backward: dq, dk and dv of o = drop(softmax(s)) v, with every option of the interface, on the tensor cores of
// Ampere and later GPUs.
//
//   dv = drop(p)^T dout    dk = scale ds^T q    dq = scale ds k    (ds times the derivative of a transform)
//
// Shapes   as in sm80_forward.cuh; dk and dv are sums over the query heads that share a key head
// Supports float16 and bfloat16, d and d_v from 1 to 256, every option. sm_80 and later. The same bits from run to run
//          unless blocks add to dq
// Work     blocks that own a tile of keys stream over query rows for dk and dv. Beyond 128 columns they compute only
//          one of the two. With kAddsDq they add their part of dq to float sums (sm80_backward_dq.cuh). Otherwise
//          blocks of the same code own query rows and stream over keys for dq. A warp owns kRowGroups times 16 keys or
//          rows. They are the rows of its scores, so that scores become operands in the same registers.
//          simt/simt_prepare.cuh runs before this kernel. After it come sm80_backward_finish.cuh, and sm80_dterms.cuh
//          or attention/dterms_reduce.cuh
// Memory   Sm80BackwardStorage: the owned tiles, two buffers of streamed tiles, ds for dq. Gradients are assembled in
//          the memory of the owned tiles
// Costs    without kAddsDq p and ds are computed twice: seven tile products instead of five; beyond 128 columns eight
// Measured bf16, H200, CUDA 13.0, TFLOP/s of 10 B H S^2 D. Two passes, (2, 16, 8192, D), D 64, 128 and 256: full 183,
//          207, 161, causal 183, 208, 163. One pass, (1, 16, 8192, D), D 64 and 128: full 225, 220 (kStep 32). No other
//          GPU was measured
// Called   by compute 'sm80_backward': src/cuda/launch/sm80_backward.cpp; tiles: sm80_backward_variant.cpp
// Source   Dao, FlashAttention-2 (2023), Algorithm 2
#pragma once

#include "../tiles/output_tile.cuh"
#include "sm80_backward_dq.cuh"
#include "sm80_backward_scores.cuh"

namespace attend {

// The sums of a warp. A gradient that the kernel does not compute has two columns, which are never accessed.
template <class Config>
struct Sm80Sums {
  using Shape = Sm80BackwardShape<Config>;
  static constexpr int kColumns = Shape::kHasFirst ? Shape::kDepth : 2;
  static constexpr int kColumnsV = Shape::kHasValues ? Shape::kDepthV : 2;
  Sm80WarpSums<Config, kColumns> first;                  // dk / scale or dq / scale
  Sm80WarpSums<Config, kColumnsV> values;                // 2^kShift dv
  float dterms[Config::kRowGroups][kRowsOfThread] = {};  // kSumsDterms: over rows, for the lane's keys
};

// Adds the contribution of kStep streamed rows or keys, from `streamed` of the sequence on.
template <class Config>
__device__ __forceinline__ void sm80_backward_step(Sm80Sums<Config>& sums, Sm80BackwardStorage<Config>& smem,
                                                   const OptionArgs& options, int streamed) {
  using Shape = Sm80BackwardShape<Config>;
  const int at = sm80_buffer(smem, streamed);
  const int first = streamed % Config::kStreamed;
  Sm80Scores<Config> p, slope;
  uint32 kept[Config::kRowGroups][kKeptWords<Shape::kScores>];
  OperandA x[Config::kRowGroups][Config::kStep / kMmaDepth];
  sm80_multiply_owned<Config, Sm80Product::kScores>(p, smem.owned, smem.stage[at].rows, first);
  if (sm80_all_visible(smem.block, streamed)) {
    sm80_make_p<true>(p, slope, kept, smem, streamed);
  } else {
    sm80_make_p<false>(p, slope, kept, smem, streamed);
  }
  if constexpr (Shape::kHasValues) {
    if constexpr (Score<Config>::kDrops) {
      Sm80Scores<Config> left;
#pragma unroll
      for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
        for (int i = 0; i < Shape::kScores; ++i) left[r][i] = is_kept(kept[r], i) ? p[r][i] : 0.0f;
      }
      sm80_pack<Config>(x, left);
    } else {
      sm80_pack<Config>(x, p);
    }
    sums.values.add(x, smem.stage[at].rows_v, first);
  }
  if constexpr (Shape::kHasFirst) {
    Sm80Scores<Config> ds;
    sm80_multiply_owned<Config, Sm80Product::kGradients>(ds, smem.owned_v, smem.stage[at].rows_v, first);
    // Computed again: a saved result would occupy a register that the sums need.
    if (sm80_all_visible(smem.block, recomputed(streamed))) {
      sm80_make_ds<true>(ds, p, kept, smem, streamed, kept_scale<Config>(options));
    } else {
      sm80_make_ds<false>(ds, p, kept, smem, streamed, kept_scale<Config>(options));
    }
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
      for (int i = 0; i < Shape::kScores; ++i) {
        if constexpr (Config::kSumsDterms) sums.dterms[r][i / 2 % 2] += ds[r][i];
        if constexpr (Score<Config>::kHasSlopes) ds[r][i] = times_slope<Config>(ds[r][i], slope[r][i]);
      }
    }
    sm80_pack<Config>(x, ds);
    if constexpr (Config::kAddsDq) sm80_store_blocks<Config>(smem.scores.tile[0], x, first);
    sums.first.add(x, smem.stage[at].rows, first);
  }
}

// Runs sm80_backward_step() if the warp has scores there. With the last part of a tile, also adds to dq.
template <class Config>
__device__ __forceinline__ void sm80_backward_part(Sm80Sums<Config>& sums, Sm80BackwardStorage<Config>& smem,
                                                   const BackwardOptionArgs& args, int streamed) {
  if (smem.block.meets(static_cast<int>(threadIdx.x) / 32, sm80_first_owned<Config>(0), streamed)) {
    sm80_backward_step(sums, smem, args.options, streamed);
  } else if constexpr (Config::kAddsDq) {
    constexpr int kBlocks = Config::kStep / kMmaDepth;
    sm80_store_blocks<Config, kBlocks>(smem.scores.tile[0], {}, streamed % Config::kStreamed);
  }
  if constexpr (Config::kAddsDq) {
    if ((streamed + Config::kStep) % Config::kStreamed != 0) return;
    __syncthreads();  // waits until ds of all warps is written; it may then be multiplied
    sm80_add_dq(smem.scores.tile[0], smem, args, streamed / Config::kStreamed * Config::kStreamed);
  }
}

// sm80_backward_head() over the tiles that a block map does not skip.
template <class Config>
__device__ __forceinline__ void sm80_backward_seen_tiles(Sm80Sums<Config>& sums, Sm80BackwardStorage<Config>& smem,
                                                         const BackwardOptionArgs& args) {
  const Sm80BackwardBlock<Config>& block = smem.block;
  Sm80Walk& walk = smem.block.walk[threadIdx.x / 32];
  int tile = block.next_tile(block.streamed.begin / Config::kStreamed * Config::kStreamed);
  if (tile < block.streamed.end) sm80_send_streamed(smem, args, tile, 0);
  cp_async_commit();
#pragma unroll 1
  for (int buffer = 0; tile < block.streamed.end; tile = walk.next, buffer = 1 - walk.buffer) {
    cp_async_wait<0>();  // waits for the thread's own copies: of this tile, and of the owned tiles
    __syncthreads();     // waits for all threads' copies. The previous tile, in the other buffer, and its ds have been
                         // read, and may be overwritten
    const int next = block.next_tile(tile + Config::kStreamed);
    if (next < block.streamed.end) sm80_send_streamed(smem, args, next, 1 - buffer);
    cp_async_commit();
    if (threadIdx.x % 32 == 0) walk = {buffer, next};
    __syncwarp();  // waits until the walk is written; only this warp's lanes read it
#pragma unroll 1
    for (int at = 0; at < Config::kStreamed; at += Config::kStep) sm80_backward_part(sums, smem, args, tile + at);
  }
}

// Processes all tiles of one query head. The block's work is set. Copies of the owned tiles may be in flight.
template <class Config>
__device__ __forceinline__ void sm80_backward_head(Sm80Sums<Config>& sums, Sm80BackwardStorage<Config>& smem,
                                                   const BackwardOptionArgs& args) {
  if constexpr (has_block_map<Config>()) return sm80_backward_seen_tiles(sums, smem, args);
  int streamed = smem.block.streamed.begin / Config::kStreamed * Config::kStreamed;
  if (streamed < smem.block.streamed.end) sm80_send_streamed(smem, args, streamed, sm80_buffer<Config>(streamed));
  cp_async_commit();
#pragma unroll 1
  for (; streamed / Config::kStreamed * Config::kStreamed < smem.block.streamed.end; streamed += Config::kStep) {
    if (streamed % Config::kStreamed == 0) {
      cp_async_wait<0>();  // waits for the thread's own copies: of this tile, and of the owned tiles
      __syncthreads();     // waits for all threads' copies. The previous tile, in the other buffer, and its ds have
                           // been read, and may be overwritten
      if (streamed + Config::kStreamed < smem.block.streamed.end) {
        const int next = streamed + Config::kStreamed;
        sm80_send_streamed(smem, args, next, sm80_buffer<Config>(next));
      }
      cp_async_commit();
    }
    sm80_backward_part(sums, smem, args, streamed);
  }
}

// Stores a gradient of the owned tile, through `tile`. Each warp writes and reads only its own rows of `tile`.
template <class Config, class Sums>
__device__ __forceinline__ void sm80_store_gradient(auto& tile, const Sums& gradient, float factor, void* tensor,
                                                    const TensorStrides& stride, const Sm80BackwardBlock<Config>& block,
                                                    int columns) {
  constexpr bool kOwnsKeys = Sm80BackwardShape<Config>::kOwnsKeys;
  const float factors[kRowsOfThread] = {factor, factor};
  const SequenceSpan& span = block.span;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    const int tile_row = sm80_first_owned<Config>(r);
    const int64 row = block.work.owned + tile_row;
    write_accumulators<ElementOf<Config>>(tile, tile_row, gradient.sum[r], factors);
    __syncwarp();  // waits until the 16 rows are written; no other warp accesses them
    auto* to = static_cast<Bits16*>(tensor) + (kOwnsKeys ? span.keys().offset(stride, block.work.head, row)
                                                         : span.query_offset(stride, block.work.head, row));
    store_pieces<Config>(tile, tile_row, to, stride.row, (kOwnsKeys ? span.seqlen_k : span.seqlen_q) - row, columns);
  }
}

template <class Config>
__device__ __forceinline__ void sm80_store_gradients(const BackwardOptionArgs& args, const Sm80Sums<Config>& sums,
                                                     Sm80BackwardStorage<Config>& smem) {
  using Shape = Sm80BackwardShape<Config>;
  const BackwardArgs& base = args.base;
  if constexpr (Shape::kHasFirst) {
    sm80_store_gradient(smem.owned, sums.first, base.gradient_scale, Shape::kOwnsKeys ? base.dk : base.dq,
                        Shape::kOwnsKeys ? base.dk_stride : base.dq_stride, smem.block, Config::kHeadDim);
  }
  if constexpr (Shape::kHasValues) {
    const float factor = kSm80Unshift<Config> * kept_scale<Config>(args.options);
    sm80_store_gradient(smem.owned_v, sums.values, factor, base.dv, base.dv_stride, smem.block, Config::kHeadDimV);
  }
}

// Stores the query head's sums of ds over rows to BackwardOptionArgs::dterms_sums, and resets them.
template <class Config>
__device__ __forceinline__ void sm80_store_dterms_sums(const BackwardOptionArgs& args, Sm80Sums<Config>& sums,
                                                       const Sm80BackwardBlock<Config>& block) {
  const int lane = threadIdx.x % 32;
  float* to = args.dterms_sums + (int64{block.span.batch} * args.base.num_heads_q + block.head) * args.base.seqlen_k;
#pragma unroll
  for (int i = 0; i < Config::kRowGroups * kRowsOfThread; ++i) {
    float& mine = sums.dterms[i / kRowsOfThread][i % kRowsOfThread];
    const float sum = quad_sum(mine);
    mine = 0.0f;
    const int64 key = block.work.owned + sm80_first_owned<Config>(i / kRowsOfThread) + accumulator_row(lane) +
                      i % kRowsOfThread * kRowHalf;
    if (accumulator_column(lane) == 0 && key < block.span.seqlen_k) to[key] = sum;
  }
}

// Computes the gradients of one tile of kOwned keys or query rows. Grid: Sm80BackwardWork::mine().
template <class Config>
__device__ void sm80_backward(const BackwardOptionArgs& args) {
  using Shape = Sm80BackwardShape<Config>;
  using Storage = Sm80BackwardStorage<Config>;
  static_assert(sizeof(Storage) == Config::kSmemBytes);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Storage*>(smem_bytes);

  const auto work = Sm80BackwardWork::mine<Config>(args.base);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, work.sequence);
  // A packed sequence shorter than the longest.
  if (work.owned >= (Shape::kOwnsKeys ? span.seqlen_k : span.seqlen_q)) return;
  const uint32 heads = Shape::kOwnsKeys ? args.base.num_heads_q / args.base.num_heads_k : 1;
  sm80_load_owned(smem, args, span, work.head * heads, work.owned);
  Sm80BackwardBlock<Config>::make(smem.block, args, work, span, work.head * heads);
  Sm80Sums<Config> sums;
  for (bool is_last = false; !is_last;) {
    __syncthreads();  // waits until the block's work is set
    sm80_backward_head(sums, smem, args);
    if constexpr (Config::kSumsDterms) sm80_store_dterms_sums(args, sums, smem.block);
    const uint32 next = smem.block.head + 1;
    is_last = !Shape::kOwnsKeys || next % (args.base.num_heads_q / args.base.num_heads_k) == 0;
    __syncthreads();  // waits until every warp has finished the head; its tiles and the block's work may then be
                      // overwritten
    if (threadIdx.x == 0 && !is_last) Sm80BackwardBlock<Config>::set_head(smem.block, args, next);
  }
  cp_async_wait<0>();  // waits for the thread's own copies: without a tile, copies of the owned rows may still be in
                       // flight
  __syncthreads();     // waits for all threads' copies; the owned rows may then be overwritten
  sm80_store_gradients(args, sums, smem);
}

}  // namespace attend
