// Rung 08, fa2: computes o = softmax(scale q k^T) v in float32 on CUDA cores, with register tiles and overlapped
// copies.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float32, d from 1 to 128 in tiles of 32, 64, 96 or 128 columns, full and causal masks, and grouped heads.
// The backward pass is in 08_fa2_backward.cuh. Requires sm_80 or newer, because of cp.async.
// Before:   Rung 07, scalar2d_row_tile, reads 0.375 words from shared memory for each multiplication, with an
//           instruction for each word. No computation overlaps with the loads of keys.
// After:    A thread has a tile of 8 x 8 scores and outputs, so four loads of 16 bytes feed 64 multiplications.
//           cp.async copies k while p v is computed, and v while q k^T is computed. q, k and p are transposed, for a
//           reason that fp32_product.cuh explains.
// Why:      Each load feeds 16 multiplications, so fewer instructions are loads. Each of the two register banks
//           delivers one operand a clock. A multiplication needs three operands. If products sum over rows of q^T and
//           k^T, successive multiplications reuse one of the operands, so two operands a clock are nearly always
//           enough.
// Costs:    A thread needs up to 244 registers, so a multiprocessor has only 8 warps. p is passed through shared
//           memory.
// Measured: TFLOP/s for (B, H, S, D) = (batch, heads, rows and keys, d), on an H200 with CUDA 13.0. The rung reaches
//           45.7 for (8, 16, 2048, 64), 40 for (8, 8, 2048, 128), and 38 for (4, 12, 1024, 64). The limit of the GPU is
//           65. A forward pass counts 4 B H S^2 D operations.
// Run:      `attend run --compute fa2 --data DIR`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/work.cuh"
#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/numbers.cuh"
#include "../tiles/fp32_product.cuh"
#include "08_fa2_shape.cuh"
#include "pieces/fp32_copies.cuh"
#include "pieces/fp32_scores.cuh"
#include "pieces/fp32_store.cuh"

namespace attend {

// How a block's tile is divided. A warp has kWarpRows rows with all their keys. A lane has kRows x kKeys scores and
// kRows x kDims outputs. Lanes form a grid of kLanesY x kLanesX. The rows of a lane are neighbours, and its keys are
// kLanesX apart.
template <class Config>
struct Fa2ForwardShape {
  static constexpr Fa2ForwardTile kTile = {.block_m = Config::kBlockM,
                                           .block_n = Config::kBlockN,
                                           .threads = Config::kThreads,
                                           .lanes_x = Config::kLanesX,
                                           .min_blocks = 0};
  static constexpr int kDepth = fa2_depth(Config::kHeadDim);  // number of columns of q and k
  static constexpr int kCols = fa2_cols(Config::kHeadDim);    // number of columns of v and o
  static constexpr int kLanesX = Config::kLanesX;
  static constexpr int kLanesY = 32 / kLanesX;
  static constexpr int kWarpRows = Config::kBlockM / (Config::kThreads / 32);
  static constexpr int kRows = kWarpRows / kLanesY;
  static constexpr int kKeys = Config::kBlockN / kLanesX;
  static constexpr int kDims = kCols / kLanesX;
  static constexpr int kStep = kLanesX * kChunkBytes;  // bytes from one of a lane's chunks in a row of k or v to its
                                                       // next
  static_assert(kRows % 4 == 0 && kKeys % 4 == 0 && kDims % 4 == 0 && kLanesX % 8 == 0);
  using Keys = KeySteps<kLanesX, 4 * kLanesX>;

  // Tiles in shared memory, and their offsets in bytes. q, k and p are transposed, because products sum over the rows
  // of a tile.
  using QTile = Fp32Tile<kDepth, PaddedRows<Config::kBlockM, kTransposedPadding>>;
  using KTile = Fp32Tile<kDepth, PaddedRows<Config::kBlockN, kTransposedPadding>>;
  using VTile = Fp32Tile<Config::kBlockN, PaddedRows<kCols, 0>>;
  using PTile = Fp32Tile<Config::kBlockN, PaddedRows<Config::kBlockM, kTransposedPadding>>;
  static constexpr int kQ = kTile.q_begin();
  static constexpr int kK = kTile.k_begin(Config::kHeadDim);
  static constexpr int kV = kTile.v_begin(Config::kHeadDim);
  static constexpr int kP = kTile.p_begin(Config::kHeadDim);
  static_assert(kTile.smem_bytes(Config::kHeadDim) == Config::kSmemBytes);
  static_assert(kK - kQ == QTile::kBytes && kV - kK == KTile::kBytes && kP - kV == VTile::kBytes &&
                Config::kSmemBytes - kP == PTile::kBytes);

  // A lane's share of scores and outputs. In the product for S, the columns of a lane are keys. In the product for O,
  // they are columns of v.
  using Scores = float[kRows][kKeys];
  using Outputs = float[kRows][kDims];
  using KeyColumns = Fp32Chunks<KTile, kStep>;
  using ValueColumns = Fp32Chunks<VTile, kStep>;
};

// Running softmax of a lane's rows. The maximum of a row is the same in all lanes that share the row. A sum covers only
// the lane's keys.
template <class Config>
struct RowSoftmax {
  static constexpr int kRows = Fa2ForwardShape<Config>::kRows;
  float max[kRows];  // maximum of q.k, or -inf before the first key
  float sum[kRows];  // sum of exp(scale (q.k - max)) over the lane's keys
};

// Turns scores into p relative to the new maxima, and rescales o and the sums. The maximum is subtracted before
// scaling. So equal products stay equal, and no finite product becomes -inf.
template <class Config>
__device__ __forceinline__ void softmax_tile(typename Fa2ForwardShape<Config>::Scores& s, RowSoftmax<Config>& rows,
                                             typename Fa2ForwardShape<Config>::Outputs& o, float scale_log2) {
  using Shape = Fa2ForwardShape<Config>;
  constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys, kDims = Shape::kDims;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float tile_max = s[i][0];
#pragma unroll
    for (int j = 1; j < kKeys; ++j) tile_max = fmaxf(tile_max, s[i][j]);
#pragma unroll
    for (int lanes = 1; lanes < Config::kLanesX; lanes *= 2) {
      tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffff, tile_max, lanes));
    }
    const float new_max = fmaxf(rows.max[i], tile_max);
    const float base = new_max == -kInfinity ? 0.0f : new_max;  // If there was no key so far, p becomes 2^-inf instead
                                                                // of NaN
    const float rescale = exp2_fast((rows.max[i] - base) * scale_log2);
    rows.max[i] = new_max;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      s[i][j] = exp2_fast((s[i][j] - base) * scale_log2);
      sum += s[i][j];
    }
    rows.sum[i] = fmaf(rows.sum[i], rescale, sum);
#pragma unroll
    for (int d = 0; d < kDims; ++d) o[i][d] *= rescale;
  }
}

// Stores the lane's p as columns of the tile in shared memory.
template <class Config>
__device__ __forceinline__ void store_transposed(const typename Fa2ForwardShape<Config>::Scores& p, int lane_row,
                                                 int lane_x) {
  using Shape = Fa2ForwardShape<Config>;
#pragma unroll
  for (int j = 0; j < Shape::kKeys; ++j) {
#pragma unroll
    for (int i = 0; i < Shape::kRows; i += 4) {
      const int place = Shape::kP + Shape::PTile::offset(lane_x + Shape::Keys::key(j), lane_row + i);
      *reinterpret_cast<float4*>(fp32_smem + place) = make_float4(p[i][j], p[i + 1][j], p[i + 2][j], p[i + 3][j]);
    }
  }
}

// Stores the lane's share of o and lse.
template <class Config>
__device__ __forceinline__ void store_output(const ForwardArgs& args, uint32 batch, uint32 head, int64 first_row,
                                             const RowSoftmax<Config>& rows,
                                             const typename Fa2ForwardShape<Config>::Outputs& o) {
  const int lane_x = threadIdx.x % Config::kLanesX;
#pragma unroll
  for (int i = 0; i < Fa2ForwardShape<Config>::kRows; ++i) {
    float sum = rows.sum[i];
#pragma unroll
    for (int lanes = 1; lanes < Config::kLanesX; lanes *= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    const int64 row = first_row + i;
    if (row >= args.seqlen_q) continue;
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    float* out = static_cast<float*>(args.o) + args.o_stride.offset(batch, head, row);
    Fp32Store<Config, Fp32StoreMode::kOverwrite>::row(o[i], inverse, out, {lane_x, Config::kLanesX});
    if (args.lse != nullptr && lane_x == 0) {
      args.lse[args.lse_stride.offset(batch, head, row)] = fmaf(rows.max[i], args.scale, logf(sum));
    }
  }
}

// Computes one tile of kBlockM query rows. The grid has one block for each tile of every query head.
template <class Config>
__device__ void fa2_forward(const ForwardArgs& args) {
  using Shape = Fa2ForwardShape<Config>;
  constexpr bool kCausal = Config::kMask == MaskKind::kCausal;
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  // Under a causal mask, the last tiles have the most keys, so they start first
  const auto [batch, head, tile] = kCausal ? tile_by_tile(gridDim.x - 1 - blockIdx.x, args.batch, args.num_heads_q)
                                           : HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = key_head_of(args, head);
  const int64 tile_row = tile * Config::kBlockM;
  const float* q = static_cast<const float*>(args.q) + args.q_stride.offset(batch, head, tile_row);
  const float* k = static_cast<const float*>(args.k) + args.k_stride.offset(batch, head_k, 0);
  const float* v = static_cast<const float*>(args.v) + args.v_stride.offset(batch, head_k, 0);

  const int lane_x = threadIdx.x % Config::kLanesX;
  const int lane_row = threadIdx.x / 32 * Shape::kWarpRows + threadIdx.x % 32 / Config::kLanesX * Shape::kRows;
  const WindowMask mask = mask_of<Config>(args);
  const int64 num_keys = mask.rows(tile_row, min(tile_row + Config::kBlockM, args.seqlen_q)).end;
  const int64 open_keys = mask.row(tile_row).end;  // every row of the tile sees all keys before this one
  const float scale_log2 = args.scale * kLog2E;

  RowSoftmax<Config> rows;
  typename Shape::Outputs o = {};
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) rows.max[i] = -kInfinity, rows.sum[i] = 0.0f;

  const auto copy_k = [&](int64 key) {
    TransposedCopies<Config, typename Shape::KTile>::template start<Shape::kLanesX>(
        Shape::kK, k + key * args.k_stride.row, args.k_stride.row, args.seqlen_k - key);
  };
  if (num_keys > 0) {
    TransposedCopies<Config, typename Shape::QTile>::template start<1>(Shape::kQ, q, args.q_stride.row,
                                                                       args.seqlen_q - tile_row);
    copy_k(0);
  }
#pragma unroll 1
  for (int64 key = 0; key < num_keys; key += Config::kBlockN) {
    wait_for_copies();
    __syncthreads();  // waits for k, and until every warp has finished p v of the previous tile; v may then be
                      // overwritten
    copy_tile_async<Config, typename Shape::VTile>(Shape::kV, v + key * args.v_stride.row, args.v_stride.row,
                                                   args.seqlen_k - key);
    typename Shape::Scores s = {};
    Fp32Columns<typename Shape::QTile>{Shape::kQ, lane_row * 4}.add_product(
        s, typename Shape::KeyColumns{Shape::kK, lane_x * kChunkBytes});
    wait_for_copies();
    __syncthreads();  // waits for v, and until every warp has finished q k^T; k may then be overwritten
    if (const int64 next = key + Config::kBlockN; next < num_keys) copy_k(next);
    if constexpr (Config::kNegateScores) negate(s);
    if (key + Config::kBlockN > open_keys) mask_scores<typename Shape::Keys>(s, mask, tile_row + lane_row, key, lane_x);
    softmax_tile<Config>(s, rows, o, scale_log2);
    store_transposed<Config>(s, lane_row, lane_x);
    __syncwarp();  // waits until p of the warp's rows is complete; no other warp reads it
    Fp32Columns<typename Shape::PTile>{Shape::kP, lane_row * 4}.add_product(
        o, typename Shape::ValueColumns{Shape::kV, lane_x * kChunkBytes});
  }
  store_output<Config>(args, batch, head, tile_row + lane_row, rows, o);
}

}  // namespace attend
