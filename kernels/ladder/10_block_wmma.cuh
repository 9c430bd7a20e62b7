// Rung 10, block_wmma: computes o = softmax(scale q k^T) v with nvcuda::wmma. The four warps of a block share tiles of
// K and V.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, grouped heads, and rows aligned to 16 bytes.
// Requires sm_80 or newer.
// Before:   In rung 09, warp_wmma, each warp reads all of k and v for its 16 rows.
// After:    64 rows share one read of k and v. Products are divided by columns. For all rows, a warp computes a quarter
//           of the columns of S and of O. So a loaded fragment of K or V is used in four products.
// Why:      Reads from the L2 cache fall to a quarter, from 16 to 64 operations for each byte. Reads of K and V from
//           shared memory also fall to a quarter.
// Costs:    Four warps compute parts of each row of S. So the block waits for all four warps four times for each tile,
//           and some of these waits separate the products from the softmax. FlashAttention-2 calls this split-K. O is
//           still passed through shared memory. Measured: 28 TFLOP/s in bfloat16 with batch 2, 16 heads, 8192 rows and
//           keys, d = 128 and no mask. H200, CUDA 13.0.
// Run:      `attend run --compute block_wmma --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   Dao, FlashAttention-2 (2023), section 3.3, figure 3(a).
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/work.cuh"
#include "../common/args.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"
#include "../tiles/smem_tile.cuh"
#include "pieces/wmma_types.cuh"

namespace attend {

// A row of S, and the row of P that overwrites it. A warp converts one row at a time. Afterwards no thread reads this
// row of S.
template <class Config>
union alignas(32) ScoreRow {
  float s[Config::kBlockN];
  typename WmmaElement<Config::kElement>::Type p[Config::kBlockN];
};

template <class Config>
struct alignas(128) BlockStorage {
  using Element = typename WmmaElement<Config::kElement>::Type;
  static constexpr int kScoreStride = Config::kBlockN;                                   // in floats
  static constexpr int kProbabilityStride = sizeof(ScoreRow<Config>) / sizeof(Element);  // in elements
  RowMajorTile<Config::kBlockM, Config::kHeadDim> q;
  RowMajorTile<Config::kBlockN, Config::kHeadDim> k;
  RowMajorTile<Config::kBlockN, Config::kHeadDim> v;
  ScoreRow<Config> score[Config::kBlockM];
  float o[Config::kBlockM][Config::kHeadDim];  // the sum of exp(s - m) v
};

template <class Config>
constexpr int kWarps = Config::kThreads / 32;
template <class Config>
constexpr int kRowTiles = Config::kBlockM / kWmmaTile;
template <class Config>
constexpr int kRowsOfWarp = Config::kBlockM / kWarps<Config>;  // number of rows whose softmax a warp computes

// State of the online softmax of a warp's rows. Every lane has m of each row, and the sum over its keys of each row.
template <int kRows>
struct RowState {
  float max[kRows];
  float sum[kRows];
};

// Computes 16 columns of S = Q K^T for all rows.
template <class Config>
__device__ __forceinline__ void scores(BlockStorage<Config>& smem, int warp) {
  using Element = typename BlockStorage<Config>::Element;
  static_assert(Config::kBlockN == kWarps<Config> * kWmmaTile);
  const auto* q = reinterpret_cast<const Element*>(smem.q.chunk);
  const auto* k = reinterpret_cast<const Element*>(smem.k.chunk) + warp * kWmmaTile * Config::kHeadDim;
  FragmentC s_frag[kRowTiles<Config>];
#pragma unroll
  for (auto& tile : s_frag) nvcuda::wmma::fill_fragment(tile, 0.0f);
#pragma unroll
  for (int i = 0; i < Config::kHeadDim; i += kWmmaTile) {
    FragmentBTransposed<Element> k_frag;
    nvcuda::wmma::load_matrix_sync(k_frag, k + i, Config::kHeadDim);
#pragma unroll
    for (int tile = 0; tile < kRowTiles<Config>; ++tile) {
      FragmentA<Element> q_frag;
      nvcuda::wmma::load_matrix_sync(q_frag, q + tile * kWmmaTile * Config::kHeadDim + i, Config::kHeadDim);
      nvcuda::wmma::mma_sync(s_frag[tile], q_frag, k_frag, s_frag[tile]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kRowTiles<Config>; ++tile) {
    nvcuda::wmma::store_matrix_sync(&smem.score[tile * kWmmaTile].s[warp * kWmmaTile], s_frag[tile],
                                    BlockStorage<Config>::kScoreStride, nvcuda::wmma::mem_row_major);
  }
}

// Computes m, l, P and the rescaled O of the warp's rows. Row 0 of the warp sees the first first_visible keys of the
// tile, and each row sees `visible_step` more keys than the row above.
template <class Config>
__device__ __forceinline__ void softmax(BlockStorage<Config>& smem, int warp, RowState<kRowsOfWarp<Config>>& stats,
                                        float scale, int64 first_visible, int visible_step) {
  using Element = typename BlockStorage<Config>::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kRowsOfWarp<Config>; ++i) {
    ScoreRow<Config>& row = smem.score[warp * kRowsOfWarp<Config> + i];
    const int64 visible = first_visible + i * visible_step;
    const float score0 = lane < visible ? scale * row.s[lane] : -kInfinity;
    const float score1 = lane + 32 < visible ? scale * row.s[lane + 32] : -kInfinity;
    const float new_max = fmaxf(stats.max[i], warp_max(fmaxf(score0, score1)));
    const float base = exponent_base(new_max);
    const float rescale = __expf(stats.max[i] - base);
    const float p0 = __expf(score0 - base);
    const float p1 = __expf(score1 - base);
    __syncwarp();  // waits until all lanes have read the row; P may then overwrite it
    row.p[lane] = Element(p0);
    row.p[lane + 32] = Element(p1);
    stats.sum[i] = stats.sum[i] * rescale + (p0 + p1);
    stats.max[i] = new_max;
    float* o = smem.o[warp * kRowsOfWarp<Config> + i];
#pragma unroll
    for (int col = 0; col < Config::kHeadDim; col += 32) o[col + lane] *= rescale;
  }
}

// Computes the warp's columns of O += P V for all rows.
template <class Config>
__device__ __forceinline__ void weighted_values(BlockStorage<Config>& smem, int warp) {
  using Element = typename BlockStorage<Config>::Element;
  constexpr int kColumns = Config::kHeadDim / kWarps<Config>;
  const auto* v = reinterpret_cast<const Element*>(smem.v.chunk);
#pragma unroll
  for (int col = warp * kColumns; col < (warp + 1) * kColumns; col += kWmmaTile) {
    FragmentB<Element> v_frag[Config::kBlockN / kWmmaTile];
#pragma unroll
    for (int i = 0; i < Config::kBlockN / kWmmaTile; ++i) {
      nvcuda::wmma::load_matrix_sync(v_frag[i], v + i * kWmmaTile * Config::kHeadDim + col, Config::kHeadDim);
    }
#pragma unroll
    for (int tile = 0; tile < kRowTiles<Config>; ++tile) {
      float* o = &smem.o[tile * kWmmaTile][col];
      FragmentC o_frag;
      nvcuda::wmma::load_matrix_sync(o_frag, o, Config::kHeadDim, nvcuda::wmma::mem_row_major);
#pragma unroll
      for (int i = 0; i < Config::kBlockN / kWmmaTile; ++i) {
        FragmentA<Element> p_frag;
        nvcuda::wmma::load_matrix_sync(p_frag, &smem.score[tile * kWmmaTile].p[i * kWmmaTile],
                                       BlockStorage<Config>::kProbabilityStride);
        nvcuda::wmma::mma_sync(o_frag, p_frag, v_frag[i], o_frag);
      }
      nvcuda::wmma::store_matrix_sync(o, o_frag, Config::kHeadDim, nvcuda::wmma::mem_row_major);
    }
  }
}

// Writes o = O / l and lse of the warp's rows that exist.
template <class Config>
__device__ __forceinline__ void finish(BlockStorage<Config>& smem, const RowState<kRowsOfWarp<Config>>& stats,
                                       const ForwardArgs& args, const HeadTile& at, int warp) {
  using Element = typename BlockStorage<Config>::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kRowsOfWarp<Config>; ++i) {
    const float sum = warp_sum(stats.sum[i]);
    const int row_of_tile = warp * kRowsOfWarp<Config> + i;
    const int64 row = at.tile * Config::kBlockM + row_of_tile;
    if (row >= args.seqlen_q) continue;
    const float inverse_sum = inverse_or_zero(sum);
    auto* o = static_cast<Element*>(args.o) + args.o_stride.offset(at.batch, at.head, row);
#pragma unroll
    for (int col = lane; col < Config::kHeadDim; col += 32) o[col] = Element(smem.o[row_of_tile][col] * inverse_sum);
    if (lane == 0 && args.lse != nullptr) {
      const float lse = sum == 0.0f ? -kInfinity : stats.max[i] + logf(sum);
      args.lse[args.lse_stride.offset(at.batch, at.head, row)] = lse;
    }
  }
}

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head.
template <class Config>
__device__ void block_wmma_forward(const ForwardArgs& args) {
  static_assert(Config::kBlockN == 64 && sizeof(BlockStorage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(128) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<BlockStorage<Config>*>(smem_bytes);
  using Element = typename BlockStorage<Config>::Element;

  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const HeadTile at = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = key_head_of(args, at.head);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64 row_begin = at.tile * Config::kBlockM;
  const auto* q = static_cast<const Element*>(args.q) + args.q_stride.offset(at.batch, at.head, row_begin);
  const auto* k = static_cast<const Element*>(args.k) + args.k_stride.offset(at.batch, head_k, 0);
  const auto* v = static_cast<const Element*>(args.v) + args.v_stride.offset(at.batch, head_k, 0);

  constexpr bool kCausal = Config::kMask == MaskKind::kCausal;
  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.rows(row_begin, row_begin + Config::kBlockM).end;
  // Without a mask, all rows see seqlen_k keys. A causal row sees one key more than the row above, up to seqlen_k
  const int64 warp_row = row_begin + warp * kRowsOfWarp<Config>;
  const int64 first_limit = kCausal ? warp_row + args.seqlen_k - args.seqlen_q + 1 : args.seqlen_k;

  RowState<kRowsOfWarp<Config>> stats;
#pragma unroll
  for (float& max : stats.max) max = -kInfinity;
#pragma unroll
  for (float& sum : stats.sum) sum = 0.0f;
  float* const o = smem.o[0];
  for (int i = threadIdx.x; i < Config::kBlockM * Config::kHeadDim; i += Config::kThreads) o[i] = 0.0f;
  copy_tile<Config::kThreads>(smem.q, q, args.q_stride.row, args.seqlen_q - row_begin);

  for (int64 key = 0; key < key_end; key += Config::kBlockN) {
    __syncthreads();  // waits until all warps have finished with K and V of the previous tile, which may then be
                      // overwritten
    copy_tile<Config::kThreads>(smem.k, k + key * args.k_stride.row, args.k_stride.row, args.seqlen_k - key);
    copy_tile<Config::kThreads>(smem.v, v + key * args.v_stride.row, args.v_stride.row, args.seqlen_k - key);
    __syncthreads();  // waits until Q, K and V are in shared memory; they may then be read
    scores(smem, warp);
    __syncthreads();  // waits until every warp's columns of S are written; warps may then read complete rows
    softmax(smem, warp, stats, args.scale, first_limit - key, kCausal ? 1 : 0);
    __syncthreads();  // waits until P and the rescaled O of all rows are written; they may then be read
    weighted_values(smem, warp);
  }
  __syncthreads();  // waits until every warp's columns of O are written; warps may then read complete rows
  finish(smem, stats, args, at, warp);
}

}  // namespace attend
