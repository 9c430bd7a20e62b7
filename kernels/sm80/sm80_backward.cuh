// sm80_backward: computes dq, dk and dv of o = drop(softmax(s)) v on the tensor cores of Ampere and later GPUs, with
// every option of the interface.
//
//   dv = drop(p)^T dout    dk = scale ds^T q    dq = scale ds k    (ds includes the derivative of a transform)
//
// Shapes   as in sm80_forward.cuh. dk and dv are sums over the query heads that share a KV head.
// Supports float16 and bfloat16, d and d_v from 1 to 256, and every option. Requires sm_80 or later. Repeated runs give
//          the same bits, unless blocks add to dq.
// Work     A block that computes dk and dv owns a tile of keys and iterates over tiles of query rows, the streamed
//          tiles. For more than 128 columns a block computes only dk or only dv. If kAddsDq is set, these blocks also
//          add their contribution to float sums of dq (sm80_backward_dq.cuh). Otherwise separate blocks compute dq with
//          the same code. They own query rows and iterate over tiles of keys. Each warp owns kRowGroups times 16 keys
//          or rows. The owned keys or rows are the rows of the warp's scores. So the scores are already in the
//          registers from which the next product reads them as operands. simt/simt_prepare.cuh runs before this kernel.
//          After this kernel, sm80_backward_finish.cuh runs, and also sm80_dterms.cuh or attention/dterms_reduce.cuh.
// Memory   Sm80BackwardStorage holds the owned tiles, two buffers of streamed tiles, and ds for dq. Gradients are
//          assembled in the memory of the owned tiles.
// Costs    Without kAddsDq, p and ds are computed twice, so there are seven products of tiles instead of five. For more
//          than 128 columns there are eight.
// Measured TFLOP/s for the shape (B, H, S, D) = (batch, heads, rows and keys, head_dim), on an H200 with CUDA 13.0 and
//          bfloat16. A backward pass counts 10 B H S^2 D operations. With two passes and the shapes (2, 16, 8192, D)
//          for D = 64, 128 and 256, the kernels reach 183, 207 and 161 with a full mask, and 183, 208 and 163 with a
//          causal mask. With one pass, a full mask, kStep 32 and the shapes (1, 16, 8192, D) for D = 64 and 128, they
//          reach 225 and 220. No other GPU was measured. Called by the backend 'sm80_backward'
//          (src/cuda/launch/sm80_backward.cpp). sm80_backward_variant.cpp chooses the tile sizes. Source Dao,
//          FlashAttention-2 (2023), Algorithm 2
#pragma once

#include "../tiles/output_tile.cuh"
#include "sm80_backward_dq.cuh"
#include "sm80_backward_scores.cuh"

namespace attend {

// The gradients that a warp accumulates. A gradient that the kernel does not compute gets two columns that are never
// accessed.
template <class Config>
struct Sm80Sums {
  using Shape = Sm80BackwardShape<Config>;
  static constexpr int kColumns = Shape::kHasFirst ? Shape::kDepth : 2;
  static constexpr int kColumnsV = Shape::kHasValues ? Shape::kDepthV : 2;
  Sm80WarpSums<Config, kColumns> first;                  // dk / scale, or dq / scale
  Sm80WarpSums<Config, kColumnsV> values;                // 2^kShift dv
  float dterms[Config::kRowGroups][kRowsOfThread] = {};  // sums of ds over query rows, for the keys of this lane. Used
                                                         // if kSumsDterms is set
};

// Adds the contribution of kStep streamed rows or keys. `streamed` is the index of the first one in the sequence.
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
    // The condition is computed again, because a saved result would occupy a register that the sums need.
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

// Runs sm80_backward_step() if the warp has visible scores in this part of a tile. After the last part of a tile, also
// adds to dq.
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
    __syncthreads();  // waits until all warps have written ds, so that its product may be computed
    sm80_add_dq(smem.scores.tile[0], smem, args, streamed / Config::kStreamed * Config::kStreamed);
  }
}

// Does the same as sm80_backward_head() for the tiles that a block map does not skip.
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
    cp_async_wait<0>();  // waits for this thread's copies: this tile and the owned tiles
    // Waits for the copies of all threads. The previous tile, in the other buffer, and its ds have been read and may be
    // overwritten.
    __syncthreads();
    const int next = block.next_tile(tile + Config::kStreamed);
    if (next < block.streamed.end) sm80_send_streamed(smem, args, next, 1 - buffer);
    cp_async_commit();
    if (threadIdx.x % 32 == 0) walk = {buffer, next};
    __syncwarp();  // waits until `walk` is written, which only lanes of this warp read
#pragma unroll 1
    for (int at = 0; at < Config::kStreamed; at += Config::kStep) sm80_backward_part(sums, smem, args, tile + at);
  }
}

// Processes all streamed tiles of one query head. The block's work must be set. Copies of the owned tiles may still be
// in flight.
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
      cp_async_wait<0>();  // waits for this thread's copies: this tile and the owned tiles
      // Waits for the copies of all threads. The previous tile, in the other buffer, and its ds have been read and may
      // be overwritten.
      __syncthreads();
      if (streamed + Config::kStreamed < smem.block.streamed.end) {
        const int next = streamed + Config::kStreamed;
        sm80_send_streamed(smem, args, next, sm80_buffer<Config>(next));
      }
      cp_async_commit();
    }
    sm80_backward_part(sums, smem, args, streamed);
  }
}

// Stores a gradient of the owned keys or rows through the shared-memory tile `tile`. Each warp accesses only its own
// rows of this tile.
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
    __syncwarp();  // waits until the 16 rows are written, which no other warp accesses
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

// Stores the query head's sums of ds over rows to BackwardOptionArgs::dterms_sums, and sets them to 0.
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

// Computes the gradients of one tile of kOwned keys or query rows. Sm80BackwardWork::mine() defines the grid.
template <class Config>
__device__ void sm80_backward(const BackwardOptionArgs& args) {
  using Shape = Sm80BackwardShape<Config>;
  using Storage = Sm80BackwardStorage<Config>;
  static_assert(sizeof(Storage) == Config::kSmemBytes);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Storage*>(smem_bytes);

  const auto work = Sm80BackwardWork::mine<Config>(args.base);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, work.sequence);
  // Return if this is a packed sequence that is shorter than the longest one.
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
    // Waits until every warp has finished the head, so that its tiles and the block's work may be overwritten.
    __syncthreads();
    if (threadIdx.x == 0 && !is_last) Sm80BackwardBlock<Config>::set_head(smem.block, args, next);
  }
  // Waits for this thread's copies; copies of the owned rows may still be in flight if there was no streamed tile.
  cp_async_wait<0>();
  __syncthreads();  // waits for the copies of all threads, so that the owned rows may be overwritten
  sm80_store_gradients(args, sums, smem);
}

}  // namespace attend
