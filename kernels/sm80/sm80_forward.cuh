// sm80_forward: o = dropout(softmax(s)) v and lse, with every option of the interface, on the tensor cores that all
// GPUs since Ampere have.
//
// Shapes   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v) and o; any
//          strides whose last is 1, any alignment; packed sequences
// Supports float16 and bfloat16, d and d_v from 1 to 512, every option. sm_80 and later
// Work     a block has kBlockM query rows of a head and, where d_v is wide, one of kColumnParts parts of the columns of
//          o. A warp has kRowGroups times 16 rows with all their keys, and does nothing for tiles of keys that none of
//          them sees. For each tile: s = q k^T, options and masks, the softmax, o += p v; the next tile comes
//          meanwhile
// Memory   q, two buffers of k and v, in panels of 64 columns (Sm80Storage). o leaves through the place of q
// Costs    a warp waits for its own softmax: what covers it are other warps. Where o leaves registers for it, two
//          groups of rows share each operand of k and v (ladder/15_mma_qreg_async.cuh, of which this has grown)
// Measured bf16, H200, CUDA 13.0, TFLOP/s: (2, 16, 8192, 128) full 363, causal 359, dropout 181; (2, 32, 8192, 64) full
//          294, causal 289, dropout 117. Plain, the rung is faster: 403 and 355. On no other GPU, nor other head_dims
// Called   by compute 'sm80_forward': src/cuda/launch/sm80_forward.cpp, where the tiles are chosen
// Source   Dao, FlashAttention-2 (2023), Algorithm 1; the lagging maximum: FlashAttention-4 (2025)
#pragma once

#include "../common/lagging_softmax.cuh"
#include "sm80_epilogue.cuh"
#include "sm80_long_sum.cuh"

namespace attend {

// A tile of keys for the warp's rows: s, its options and masks, p, o. scale_log2: what scores are multiplied with to be
// exponents of 2.
template <class Config>
__device__ __forceinline__ void sm80_attend_tile(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                 const Sm80Storage<Config>& smem, int n, float scale_log2) {
  const int lane = threadIdx.x % 32;
  sm80_multiply_qk(rows, smem.q_or_o, smem.stage[n % kSm80Stages].k);
  const int64 key = int64{n} * Config::kBlockN;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    const auto tile = smem.block.rules.tile(smem.block.work.row + sm80_first_row<Config>(r), key);
    if (tile.template all_visible<kMmaRows, Config::kBlockN>()) {
      apply_rules<true>(tile, rows[r].s, lane);
    } else {
      apply_rules<false>(tile, rows[r].s, lane);
    }
  }
  raise_maxima(rows, scale_log2);
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    exp2_rows<ScoreUnits::kNatural>(rows[r].s, scale_log2, rows[r].softmax.row_max);
    rows[r].softmax.add_to_sum(rows[r].s);  // of p before dropout
    if constexpr (Config::kHasDropout) {
      uint32 kept[kKeptWords<Config::kBlockN / 2>];
      const auto tile = smem.block.rules.tile(smem.block.work.row + sm80_first_row<Config>(r), key);
      kept_bits<Config::kBlockN / 2>(tile, kept, lane);
      drop(rows[r].s, kept);
    }
  }
  sm80_multiply_pv(rows, smem.stage[n % kSm80Stages].v);
}

// Brings a block's tiles.
template <class Config>
struct Sm80Loads {
  using Storage = Sm80Storage<Config>;
  template <class Tile>
  using Loader = PieceLoader<Config::kThreads, Config::kCopyBytes, Tile>;
  Loader<typename Storage::KTile> k;
  Loader<typename Storage::VTile> v;

  [[nodiscard]] static __device__ __forceinline__ Sm80Loads of(const ForwardArgs& args,
                                                               const Sm80Block<Config>& block) {
    const uint32 head = key_head_of(args, block.work.head);
    const int64 key = block.span.k_begin + int64{block.tiles.begin} * Config::kBlockN;
    const auto* k_gmem = static_cast<const Bits16*>(args.k) + args.k_stride.offset(block.span.batch, head, key);
    const auto* v_gmem = static_cast<const Bits16*>(args.v) + args.v_stride.offset(block.span.batch, head, key) +
                         block.work.part * Sm80Shape<Config>::kColumnsV;
    return {{k_gmem, args.k_stride.row}, {v_gmem, args.v_stride.row}};
  }

  // Sends for tile n, the next one.
  __device__ __forceinline__ void send(const ForwardArgs& args, Storage& smem, int n) {
    const auto keys =
        static_cast<int>(min(smem.block.span.seqlen_k - int64{n} * Config::kBlockN, int64{Config::kBlockN}));
    k.load(smem.stage[n % kSm80Stages].k, args.k_stride.row, keys, Config::kHeadDim);
    v.load(smem.stage[n % kSm80Stages].v, args.v_stride.row, keys,
           Config::kHeadDimV - smem.block.work.part * Sm80Shape<Config>::kColumnsV);
  }
};

template <class Config>
__device__ void sm80_forward(const ForwardOptionArgs& args) {
  using Shape = Sm80Shape<Config>;
  using Storage = Sm80Storage<Config>;
  static_assert(sizeof(Storage) + Sm80LongSum<Config>::kBytes == Config::kSmemBytes);
  static_assert(Shape::kBlockM == Config::kBlockM);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Storage*>(smem_bytes);

  const auto work = Sm80Work<Config>::mine(args.base);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, work.sequence);
  if (work.row >= span.seqlen_q) return;  // a packed sequence shorter than the longest
  Sm80Block<Config>& block = smem.block;
  Sm80Block<Config>::make(block, args, work, span);
  const auto* q = static_cast<const Bits16*>(args.base.q) +
                  args.base.q_stride.offset(span.batch, work.head, span.q_begin + work.row);
  PieceLoader<Config::kThreads, Config::kCopyBytes, typename Storage::QTile> q_loader(q, args.base.q_stride.row);
  q_loader.load(smem.q_or_o, args.base.q_stride.row,
                static_cast<int>(min(span.seqlen_q - work.row, int64{Config::kBlockM})), Config::kHeadDim);
  cp_async_commit();
  __syncthreads();  // the block's work is there
  int n = block.tiles.begin;
  auto loads = Sm80Loads<Config>::of(args.base, block);
  if (n < block.tiles.end) loads.send(args.base, smem, n);
  cp_async_commit();
  cp_async_wait<1>();  // the thread's part of q is there; the keys may still be on their way
  __syncthreads();     // all of q is

  Sm80Rows<Config> rows[Config::kRowGroups];
  if constexpr (Config::kQInRegisters) {
#pragma unroll
    for (int i = 0; i < Config::kRowGroups * Shape::kDepth; i += kMmaDepth) {
      rows[i / Shape::kDepth].q[i % Shape::kDepth / kMmaDepth] =
          sm80_read_q<Config>(smem.q_or_o, i / Shape::kDepth, i % Shape::kDepth);
    }
  }
  const float scale_log2 = fminf(score_scale_log2(block.rules), kLargestFloat);
  const Sm80LongSum<Config> long_sum = {reinterpret_cast<float*>(smem_bytes + sizeof(Storage))};
  long_sum.clear();
#pragma unroll 1
  for (; n < block.tiles.end; ++n) {
    cp_async_wait<0>();  // the thread's part of tile n is there
    __syncthreads();     // all parts are; and the tile before, in the other buffer, is no longer read
    if (n + 1 < block.tiles.end) loads.send(args.base, smem, n + 1);
    cp_async_commit();
    if (block.own[threadIdx.x / 32].has(n)) sm80_attend_tile(rows, smem, n, scale_log2);
    long_sum.put_aside(rows, n, scale_log2);
  }
  long_sum.add_to(rows, scale_log2);
  sm80_store_rows(args, smem, rows, score_scale(block.rules));
}

}  // namespace attend
