// Rung 08, fa2, backward pass: computes dq, dk and dv of o = softmax(scale q k^T) v in float32 on CUDA cores.
//
//   p = exp(scale q k^T - lse)    delta = rowsum(dout * o) - dlse    ds = p * (dout v^T - delta)
//   dv = p^T dout                 dk = scale ds^T q                  dq = scale ds k
//
// Shapes:   as in 08_fa2.cuh.
// Supports: the same problems as 08_fa2.cuh. Atomic additions sum dq, so its last bits differ from run to run.
// Before:   The standard backward pass stores p and ds in memory.
// After:    A block owns kBlockN keys, with dk and dv in registers, and loops over the tiles of query rows. It computes
//           p again from lse. The contribution of each tile is added to dq in memory. The L2 cache does the addition,
//           and no thread waits for it.
// Why:      All five products read shared memory through register tiles of 8 x 4 numbers, and nothing of size seqlen_q
//           x seqlen_k is stored in memory.
// Costs:    p, and then ds, are passed through shared memory, with five barriers for each tile. k is stored twice, as
//           rows and as columns. Registers limit a multiprocessor to 8 warps. The preceding kernel must zero dq.
// Measured: TFLOP/s for (B, H, S, D) = (batch, heads, rows and keys, d), on an H200 with CUDA 13.0. The rung reaches 41
//           for (8, 16, 2048, 64), 34 for (8, 8, 2048, 128), and 39 for (4, 12, 1024, 64). A backward pass counts 10 B
//           H S^2 D operations.
// Run:      `attend run --compute fa2 --mode both --data DIR`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 2.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/work.cuh"
#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/numbers.cuh"
#include "../tiles/fp32_product.cuh"
#include "08_fa2_prepare.cuh"
#include "08_fa2_shape.cuh"
#include "pieces/fp32_copies.cuh"
#include "pieces/fp32_scores.cuh"
#include "pieces/fp32_store.cuh"

namespace attend {

// How a block's tiles are divided. Threads form a grid of kThreadsY x kThreadsX. A thread has kRows x kKeys scores,
// kKeysOut x kDims elements of dk and of dv, and kRows x kDims elements of dq.
template <class Config>
struct Fa2BackwardShape {
  static constexpr Fa2BackwardTile kTile = {.block_m = Config::kBlockM,
                                            .block_n = Config::kBlockN,
                                            .threads = Config::kThreads,
                                            .threads_x = Config::kThreadsX,
                                            .min_blocks = 0};
  static constexpr int kDepth = fa2_depth(Config::kHeadDim);  // number of columns over which q k^T and dout v^T sum
  static constexpr int kCols = fa2_cols(Config::kHeadDim);    // number of columns of the gradients
  static constexpr int kLanesX = 8;
  static constexpr int kThreadsX = Config::kThreadsX;
  static constexpr int kThreadsY = Config::kThreads / kThreadsX;
  static constexpr int kRows = Config::kBlockM / kThreadsY;
  static constexpr int kKeys = Config::kBlockN / kThreadsX;
  static constexpr int kKeysOut = Config::kBlockN / kThreadsY;
  static constexpr int kDims = kCols / kThreadsX;
  // Bytes from one of a thread's chunks of a row to its next.
  static constexpr int kStep = kThreadsX * kChunkBytes;
  static constexpr int kKeyPart = kKeys < kChunkFloats ? kKeys : kChunkFloats;  // number of keys in one of a thread's
                                                                                // chunks
  static_assert(kSavedRowsTile % Config::kBlockM == 0);
  static_assert(kThreadsX % kLanesX == 0 && kKeysOut % 4 == 0 && kDims % 4 == 0);
  using Keys = KeySteps<1, 4 * kThreadsX>;

  // Tiles in shared memory, and their offsets in bytes.
  using TransposedTile = Fp32Tile<kDepth, PaddedRows<Config::kBlockN, kTransposedPadding>>;
  using KTile = Fp32Tile<Config::kBlockN, PaddedRows<kCols, 0>>;
  using QueryTile = Fp32Tile<Config::kBlockM, FlippedRows<kCols, kRows>>;
  using ScoreTile = Fp32Tile<Config::kBlockM, FlippedRows<Config::kBlockN, kRows>>;
  static constexpr int kKTransposed = kTile.k_transposed_begin();
  static constexpr int kVTransposed = kTile.v_transposed_begin(Config::kHeadDim);
  static constexpr int kK = kTile.k_begin(Config::kHeadDim);
  static constexpr int kQ = kTile.q_begin(Config::kHeadDim);
  static constexpr int kDout = kTile.dout_begin(Config::kHeadDim);
  static constexpr int kScores = kTile.scores_begin(Config::kHeadDim);  // holds p, and later ds
  static constexpr int kSaved = kTile.saved_begin(Config::kHeadDim);
  static_assert(kTile.smem_bytes(Config::kHeadDim) == Config::kSmemBytes);
  static_assert(kK - kVTransposed == TransposedTile::kBytes && kQ - kK == KTile::kBytes &&
                kDout - kQ == QueryTile::kBytes && kSaved - kScores == ScoreTile::kBytes);
  static_assert(kQ % kBankRowBytes == 0 && kDout % kBankRowBytes == 0 &&
                kScores % kBankRowBytes == 0);  // FlippedRows requires this alignment

  // A thread's share of scores and gradients, and its columns in products.
  using Scores = float[kRows][kKeys];
  using KeySums = float[kKeysOut][kDims];
  using TransposedColumns = Fp32Chunks<TransposedTile, kStep>;
  using QueryColumns = Fp32Chunks<QueryTile, kStep>;
  using KeyColumns = Fp32Chunks<KTile, kStep>;
};

// Place of a thread in the grid. A warp is 8 lanes wide and 4 high, and the warps of a block fill the grid row by row.
template <class Config>
struct Fa2ThreadPlace {
  int x;
  int y;

  [[nodiscard]] static __device__ __forceinline__ Fa2ThreadPlace mine() {
    constexpr int kLanesX = Fa2BackwardShape<Config>::kLanesX;
    constexpr int kWarpsX = Config::kThreadsX / kLanesX;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    return {warp % kWarpsX * kLanesX + lane % kLanesX, warp / kWarpsX * (32 / kLanesX) + lane / kLanesX};
  }
  [[nodiscard]] __device__ __forceinline__ ChunksOfLane chunks() const { return {x, Config::kThreadsX}; }
};

// Rows of one query head. The block of a tile of keys loops over them.
template <class Config>
struct RowWalk {
  using Shape = Fa2BackwardShape<Config>;
  const float* q;
  const float* dout;
  const Fa2SavedRow* saved;
  float* dq;
  int64 q_stride;
  int64 dout_stride;
  int64 dq_stride;
  int64 seqlen_q;

  [[nodiscard]] static __device__ __forceinline__ RowWalk of_head(const BackwardArgs& args, uint32 batch, uint32 head) {
    return {static_cast<const float*>(args.q) + args.q_stride.offset(batch, head, 0),
            static_cast<const float*>(args.dout) + args.dout_stride.offset(batch, head, 0),
            fa2_saved_rows(args, batch, head),
            static_cast<float*>(args.dq) + args.dq_stride.offset(batch, head, 0),
            args.q_stride.row,
            args.dout_stride.row,
            args.dq_stride.row,
            args.seqlen_q};
  }

  // copy_q() and copy_dout() start the copies of the tile of rows that begins with `row`, if there is one.
  __device__ __forceinline__ void copy_q(int64 row) const {
    if (row >= seqlen_q) return;
    copy_tile_async<Config, typename Shape::QueryTile>(Shape::kQ, q + row * q_stride, q_stride, seqlen_q - row);
  }
  __device__ __forceinline__ void copy_dout(int64 row) const {
    if (row >= seqlen_q) return;
    copy_tile_async<Config, typename Shape::QueryTile>(Shape::kDout, dout + row * dout_stride, dout_stride,
                                                       seqlen_q - row);
    constexpr int kChunks = Config::kBlockM * sizeof(Fa2SavedRow) / kChunkBytes;
    if (threadIdx.x < kChunks) {
      const auto* from = reinterpret_cast<const float*>(saved + row) + threadIdx.x * kChunkFloats;
      copy_async<kChunkBytes>(Shape::kSaved + threadIdx.x * kChunkBytes, from, true);
    }
  }
};

// Stores a thread's scores to the tile in shared memory.
template <class Config>
__device__ __forceinline__ void store_scores(const typename Fa2BackwardShape<Config>::Scores& s,
                                             const Fa2ThreadPlace<Config>& me) {
  using Shape = Fa2BackwardShape<Config>;
  constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys, kPart = Shape::kKeyPart;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; j += kPart) {
      const int key = me.x * kPart + Shape::Keys::key(j);
      unsigned char* place = fp32_smem + Shape::kScores + Shape::ScoreTile::offset(me.y * kRows + i, key);
      if constexpr (kPart == 4) {
        *reinterpret_cast<float4*>(place) = make_float4(s[i][j], s[i][j + 1], s[i][j + 2], s[i][j + 3]);
      } else {
        *reinterpret_cast<float2*>(place) = make_float2(s[i][j], s[i][j + 1]);
      }
    }
  }
}

// Turns products into p. Converting lse to base 2 rounds it again, which matters if lse is large. In that case, the
// product is first rounded as lse was, then lse is subtracted, and only the difference is converted. So the result is
// exactly 0 for the one large score of such a row.
template <class Config>
__device__ __forceinline__ void probabilities(typename Fa2BackwardShape<Config>::Scores& p, const Fa2SavedRow* rows,
                                              float scale) {
  constexpr int kRows = Fa2BackwardShape<Config>::kRows, kKeys = Fa2BackwardShape<Config>::kKeys;
  constexpr float kSmallLse = 16.0f;
  float largest_lse = 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; ++i) largest_lse = fmaxf(largest_lse, fabsf(rows[i].lse));
  if (largest_lse < kSmallLse) {
    const float scale_log2 = scale * kLog2E;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float lse_log2 = rows[i].lse * kLog2E;
#pragma unroll
      for (int j = 0; j < kKeys; ++j) p[i][j] = exp2_fast(fmaf(p[i][j], scale_log2, -lse_log2));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      p[i][j] = exp2_fast(__fsub_rn(__fmul_rn(p[i][j], scale), rows[i].lse) * kLog2E);
    }
  }
}

// Stores p of a tile to shared memory, and computes ds in registers. ds replaces p in shared memory after p has been
// used for dv.
template <class Config>
__device__ __forceinline__ void score_gradients(typename Fa2BackwardShape<Config>::Scores& ds, const WindowMask& mask,
                                                int64 row, int64 key, float scale, const Fa2ThreadPlace<Config>& me) {
  using Shape = Fa2BackwardShape<Config>;
  using QueryTile = typename Shape::QueryTile;
  using Transposed = typename Shape::TransposedColumns;
  constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys;
  const int my_row = QueryTile::offset(me.y * kRows, 0);
  const int my_key = me.x * Shape::kKeyPart;
  typename Shape::Scores p = {};
  Fp32Rows<QueryTile>{Shape::kQ + my_row}.add_product(p, Transposed{Shape::kKTransposed, my_key * 4});
  if constexpr (Config::kNegateScores) negate(p);
  if (key + Config::kBlockN > mask.row(row).end) {
    mask_scores<typename Shape::Keys>(p, mask, row + me.y * kRows, key, my_key);
  }
  const auto* rows = reinterpret_cast<const Fa2SavedRow*>(fp32_smem + Shape::kSaved) + me.y * kRows;
  probabilities<Config>(p, rows, scale);
  store_scores<Config>(p, me);

  Fp32Rows<QueryTile>{Shape::kDout + my_row}.add_product(ds, Transposed{Shape::kVTransposed, my_key * 4});
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) ds[i][j] = p[i][j] * (ds[i][j] - rows[i].delta);
  }
}

// Processes one tile of rows. q and dout of the tile have arrived or are being copied. Adds to dk and dv, and to dq in
// memory.
template <class Config>
__device__ __forceinline__ void backward_tile(typename Fa2BackwardShape<Config>::KeySums& dk,
                                              typename Fa2BackwardShape<Config>::KeySums& dv,
                                              const RowWalk<Config>& walk, const WindowMask& mask, int64 row, int64 key,
                                              const BackwardArgs& args) {
  using Shape = Fa2BackwardShape<Config>;
  using ScoreTile = typename Shape::ScoreTile;
  using Queries = typename Shape::QueryColumns;
  constexpr int kRows = Shape::kRows, kDims = Shape::kDims;
  const auto me = Fa2ThreadPlace<Config>::mine();
  const int my_keys = me.y * Shape::kKeysOut * 4;
  const int my_dims = me.x * kChunkBytes;
  wait_for_copies();
  __syncthreads();  // waits for the tiles, and until every warp has finished ds k of the previous tile; p may then
                    // overwrite ds
  typename Shape::Scores ds = {};
  score_gradients<Config>(ds, mask, row, key, args.scale, me);
  __syncthreads();  // waits until p is complete; it may then be read
  Fp32Columns<ScoreTile>{Shape::kScores, my_keys}.add_product(dv, Queries{Shape::kDout, my_dims});
  __syncthreads();  // waits until every warp has finished with p, dout and the saved rows, which may then be
                    // overwritten
  walk.copy_dout(row + Config::kBlockM);
  store_scores<Config>(ds, me);
  __syncthreads();  // waits until ds is complete; it may then be read
  Fp32Columns<ScoreTile>{Shape::kScores, my_keys}.add_product(dk, Queries{Shape::kQ, my_dims});
  __syncthreads();  // waits until every warp has finished with q; the next tile of q may then be copied
  walk.copy_q(row + Config::kBlockM);
  float dq[kRows][kDims] = {};
  Fp32Rows<ScoreTile>{Shape::kScores + ScoreTile::offset(me.y * kRows, 0)}.add_product(
      dq, typename Shape::KeyColumns{Shape::kK, my_dims});
  const int64 my_row = row + me.y * kRows;
  Fp32Store<Config, Fp32StoreMode::kAdd>::rows(dq, args.gradient_scale, walk.dq + my_row * walk.dq_stride,
                                               walk.dq_stride, walk.seqlen_q - my_row, me.chunks());
}

// Computes dk and dv of one tile of kBlockN keys, and adds the tile's contribution to dq. The grid has one block for
// each tile of every key head.
template <class Config>
__device__ void fa2_backward(const BackwardArgs& args) {
  using Shape = Fa2BackwardShape<Config>;
  using Transposed = typename Shape::TransposedTile;
  constexpr bool kCausal = Config::kMask == MaskKind::kCausal;
  const auto key_tiles = static_cast<uint32>(num_tiles(args.seqlen_k, Config::kBlockN));
  // Under a causal mask, the most rows see the first tiles, so these start first
  const auto [batch, head_k, tile] = kCausal ? tile_by_tile(blockIdx.x, args.batch, args.num_heads_k)
                                             : HeadTile::of_block(blockIdx.x, key_tiles, args.num_heads_k);
  const int64 key = tile * Config::kBlockN;
  const int64 keys_left = args.seqlen_k - key;
  const WindowMask mask = mask_of<Config>(args);
  const int64 first_row = mask.rows_of_key(key).begin / Config::kBlockM * Config::kBlockM;

  const float* k = static_cast<const float*>(args.k) + args.k_stride.offset(batch, head_k, key);
  const float* v = static_cast<const float*>(args.v) + args.v_stride.offset(batch, head_k, key);
  TransposedCopies<Config, Transposed>::template start<1>(Shape::kKTransposed, k, args.k_stride.row, keys_left);
  TransposedCopies<Config, Transposed>::template start<1>(Shape::kVTransposed, v, args.v_stride.row, keys_left);
  copy_tile_async<Config, typename Shape::KTile>(Shape::kK, k, args.k_stride.row, keys_left);
  typename Shape::KeySums dk = {};
  typename Shape::KeySums dv = {};
  const uint32 group = args.num_heads_q / args.num_heads_k;
#pragma unroll 1
  for (uint32 head = head_k * group; head < (head_k + 1) * group; ++head) {
    const auto walk = RowWalk<Config>::of_head(args, batch, head);
    walk.copy_q(first_row);
    walk.copy_dout(first_row);
#pragma unroll 1
    for (int64 row = first_row; row < args.seqlen_q; row += Config::kBlockM) {
      backward_tile<Config>(dk, dv, walk, mask, row, key, args);
    }
  }
  const auto me = Fa2ThreadPlace<Config>::mine();
  const int my_key = me.y * Shape::kKeysOut;
  float* dk_out = static_cast<float*>(args.dk) + args.dk_stride.offset(batch, head_k, key + my_key);
  float* dv_out = static_cast<float*>(args.dv) + args.dv_stride.offset(batch, head_k, key + my_key);
  using Store = Fp32Store<Config, Fp32StoreMode::kOverwrite>;
  Store::rows(dk, args.gradient_scale, dk_out, args.dk_stride.row, keys_left - my_key, me.chunks());
  Store::rows(dv, 1.0f, dv_out, args.dv_stride.row, keys_left - my_key, me.chunks());
}

}  // namespace attend
