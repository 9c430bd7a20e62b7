// Rung 11, wmma_row_block: computes o = softmax(scale q k^T) v with nvcuda::wmma. Each warp has separate rows, with O
// in registers.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, grouped heads, and rows aligned to 16 bytes.
// Requires sm_80 or newer.
// Before:   In rung 10, block_wmma, products are divided by columns, so every step of a tile waits for all warps.
// After:    Products are divided by rows. S, P, m, l and O of 16 rows belong to one warp. Warps wait for each other
//           only to share K and V. O stays in accumulators. wmma does not define which element a register holds. So the
//           rescale factors are also loaded as an accumulator, from a matrix whose rows hold them.
// Why:      There are two barriers for each tile instead of four. Shared memory moves 16 d bytes less for each row and
//           tile, because the product and the rescale no longer read and write O there. 128 rows instead of 64 share a
//           read of k and v.
// Costs:    S and P are still passed through shared memory. The rows of a tile lie in the same banks, so a load of a
//           fragment of K takes eight times as long as without bank conflicts. For wmma's bfloat16, the compiler uses
//           loads of 4 bytes instead of ldmatrix.
// Measured: 38 TFLOP/s in bfloat16 with batch 2, 16 heads, 8192 rows and keys, d = 128 and no mask. H200, CUDA 13.0.
// Run:      `attend run --compute wmma_row_block --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1 and section 3.3, figure 3(b).
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/work.cuh"
#include "../common/args.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "../tiles/smem_tile.cuh"
#include "pieces/wmma_types.cuh"

namespace attend {

// A row of S. After the row has been read, its row of P and the factor for its row of O overwrite it.
template <class Config>
union alignas(32) ScoreRow {
  float s[Config::kBlockN];
  struct {
    typename WmmaElement<Config::kElement>::Type p[Config::kBlockN];
    float factor[kWmmaTile];  // 16 copies of one factor
  } after;
  float o[kWmmaTile];  // columns of o, used in the epilogue
};

template <class Config>
struct alignas(128) RowBlockStorage {
  using Element = typename WmmaElement<Config::kElement>::Type;
  static constexpr int kFloatStride = sizeof(ScoreRow<Config>) / sizeof(float);
  static constexpr int kElementStride = sizeof(ScoreRow<Config>) / sizeof(Element);
  RowMajorTile<Config::kBlockM, Config::kHeadDim> q;
  RowMajorTile<Config::kBlockN, Config::kHeadDim> k;
  RowMajorTile<Config::kBlockN, Config::kHeadDim> v;
  ScoreRow<Config> score[Config::kBlockM];
};

// State of a warp's 16 rows. O lies in fragments of 16 columns. The lanes 2 r and 2 r + 1 have m and l of row r.
template <class Config>
struct RowState {
  FragmentC o_frag[Config::kHeadDim / kWmmaTile];  // the sum of exp(s - m) v
  float max = -kInfinity;
  float sum = 0.0f;

  __device__ __forceinline__ RowState() {
#pragma unroll
    for (auto& frag : o_frag) nvcuda::wmma::fill_fragment(frag, 0.0f);
  }
};

// Computes the warp's rows of S = Q K^T.
template <class Config>
__device__ __forceinline__ void scores(RowBlockStorage<Config>& smem, int warp) {
  using Element = typename RowBlockStorage<Config>::Element;
  constexpr int kTiles = Config::kBlockN / kWmmaTile;
  const auto* q = reinterpret_cast<const Element*>(smem.q.chunk) + warp * kWmmaTile * Config::kHeadDim;
  const auto* k = reinterpret_cast<const Element*>(smem.k.chunk);
  FragmentC s_frag[kTiles];
#pragma unroll
  for (auto& tile : s_frag) nvcuda::wmma::fill_fragment(tile, 0.0f);
#pragma unroll 1  // If this loop were unrolled, the compiler would keep the addresses of all fragments in registers
  for (int i = 0; i < Config::kHeadDim; i += kWmmaTile) {
    FragmentA<Element> q_frag;
    nvcuda::wmma::load_matrix_sync(q_frag, q + i, Config::kHeadDim);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      FragmentBTransposed<Element> k_frag;
      nvcuda::wmma::load_matrix_sync(k_frag, k + tile * kWmmaTile * Config::kHeadDim + i, Config::kHeadDim);
      nvcuda::wmma::mma_sync(s_frag[tile], q_frag, k_frag, s_frag[tile]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    nvcuda::wmma::store_matrix_sync(&smem.score[warp * kWmmaTile].s[tile * kWmmaTile], s_frag[tile],
                                    RowBlockStorage<Config>::kFloatStride, nvcuda::wmma::mem_row_major);
  }
}

// Computes m, l, P and the rescale factors of the warp's rows, with two lanes for each row. Lane 2 r has the first half
// of row r's keys, and lane 2 r + 1 the second half. The row sees the first num_keys keys of the tile. Lanes start at
// different keys, because otherwise all lanes would read one bank.
template <class Config>
__device__ __forceinline__ void softmax(RowBlockStorage<Config>& smem, int warp, RowState<Config>& state, float scale,
                                        int num_keys) {
  using Element = typename RowBlockStorage<Config>::Element;
  constexpr int kPairs = Config::kBlockN / 4;  // number of pairs of neighbouring keys in a lane
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ScoreRow<Config>& row = smem.score[warp * kWmmaTile + lane / 2];
  const auto key_of = [lane](int i) { return lane % 2 * (Config::kBlockN / 2) + (i ^ lane / 2) * 2; };

  float2 score[kPairs];
  float new_max = state.max;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int key = key_of(i);
    const float2 s = *reinterpret_cast<const float2*>(&row.s[key]);
    score[i] = {key < num_keys ? scale * s.x : -kInfinity, key + 1 < num_keys ? scale * s.y : -kInfinity};
    new_max = fmaxf(new_max, fmaxf(score[i].x, score[i].y));
  }
  new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 1));
  const float base = exponent_base(new_max);
  const float rescale = __expf(state.max - base);
  __syncwarp();  // waits until all lanes have read their scores; P may then overwrite them
  float sum = state.sum * rescale;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float2 p = {__expf(score[i].x - base), __expf(score[i].y - base)};
    sum += p.x + p.y;
    row.after.p[key_of(i)] = Element(p.x);
    row.after.p[key_of(i) + 1] = Element(p.y);
  }
#pragma unroll
  for (int i = 0; i < kWmmaTile; i += 2) row.after.factor[i + lane % 2] = rescale;
  state.sum = sum;
  state.max = new_max;
}

// Computes the warp's rows of O = factor O + P V.
template <class Config>
__device__ __forceinline__ void weighted_values(RowBlockStorage<Config>& smem, int warp, RowState<Config>& state) {
  using Element = typename RowBlockStorage<Config>::Element;
  const auto* v = reinterpret_cast<const Element*>(smem.v.chunk);
  const ScoreRow<Config>* rows = &smem.score[warp * kWmmaTile];
  FragmentC factor;  // element i is the factor for element i of o_frag, which lies in the same row
  nvcuda::wmma::load_matrix_sync(factor, rows->after.factor, RowBlockStorage<Config>::kFloatStride,
                                 nvcuda::wmma::mem_row_major);
#pragma unroll
  for (FragmentC& o_frag : state.o_frag) {
#pragma unroll
    for (int i = 0; i < factor.num_elements; ++i) o_frag.x[i] *= factor.x[i];
  }
#pragma unroll 1  // not unrolled, for the same reason as in scores()
  for (int key = 0; key < Config::kBlockN; key += kWmmaTile) {
    FragmentA<Element> p_frag;
    nvcuda::wmma::load_matrix_sync(p_frag, &rows->after.p[key], RowBlockStorage<Config>::kElementStride);
#pragma unroll
    for (int col = 0; col < Config::kHeadDim / kWmmaTile; ++col) {
      FragmentB<Element> v_frag;
      nvcuda::wmma::load_matrix_sync(v_frag, v + key * Config::kHeadDim + col * kWmmaTile, Config::kHeadDim);
      nvcuda::wmma::mma_sync(state.o_frag[col], p_frag, v_frag, state.o_frag[col]);
    }
  }
}

// Writes o = O / l and lse of the warp's rows that exist. O is copied through the rows of S, 16 columns at a time.
template <class Config>
__device__ __forceinline__ void finish(RowBlockStorage<Config>& smem, RowState<Config>& state, const ForwardArgs& args,
                                       const HeadTile& at, int warp) {
  using Element = typename RowBlockStorage<Config>::Element;
  constexpr int kColumns = kWmmaTile / 2;  // number of columns that a lane stores of each 16 columns
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64 row = at.tile * Config::kBlockM + warp * kWmmaTile + lane / 2;
  ScoreRow<Config>* rows = &smem.score[warp * kWmmaTile];
  const float sum = state.sum + __shfl_xor_sync(kAllLanes, state.sum, 1);
  const float inverse_sum = inverse_or_zero(sum);
  if (lane % 2 == 0 && args.lse != nullptr && row < args.seqlen_q) {
    const float lse = sum == 0.0f ? -kInfinity : state.max + logf(sum);
    args.lse[args.lse_stride.offset(at.batch, at.head, row)] = lse;
  }
  auto* o = static_cast<Element*>(args.o) + args.o_stride.offset(at.batch, at.head, row) + lane % 2 * kColumns;
#pragma unroll
  for (int tile = 0; tile < Config::kHeadDim / kWmmaTile; ++tile) {
    __syncwarp();  // waits until the rows have been read; they may then be overwritten
    nvcuda::wmma::store_matrix_sync(rows->o, state.o_frag[tile], RowBlockStorage<Config>::kFloatStride,
                                    nvcuda::wmma::mem_row_major);
    __syncwarp();  // waits until the 16 columns are written; they may then be read
    if (row >= args.seqlen_q) continue;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      o[tile * kWmmaTile + i] = Element(rows[lane / 2].o[lane % 2 * kColumns + i] * inverse_sum);
    }
  }
}

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head. Each warp has 16
// rows.
template <class Config>
__device__ void wmma_row_block_forward(const ForwardArgs& args) {
  static_assert(Config::kBlockN == 64 && Config::kBlockM == Config::kThreads / 32 * kWmmaTile);
  static_assert(sizeof(RowBlockStorage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(128) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<RowBlockStorage<Config>*>(smem_bytes);
  using Element = typename RowBlockStorage<Config>::Element;

  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const HeadTile at = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = key_head_of(args, at.head);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64 row_begin = at.tile * Config::kBlockM;
  const auto* q = static_cast<const Element*>(args.q) + args.q_stride.offset(at.batch, at.head, row_begin);
  const auto* k = static_cast<const Element*>(args.k) + args.k_stride.offset(at.batch, head_k, 0);
  const auto* v = static_cast<const Element*>(args.v) + args.v_stride.offset(at.batch, head_k, 0);

  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.rows(row_begin, row_begin + Config::kBlockM).end;
  const int64 lane_row = row_begin + warp * kWmmaTile + threadIdx.x % 32 / 2;  // row whose softmax the thread computes
  const int64 lane_keys = mask.row(lane_row).end;

  RowState<Config> state;
  copy_tile<Config::kThreads>(smem.q, q, args.q_stride.row, args.seqlen_q - row_begin);
  for (int64 key = 0; key < key_end; key += Config::kBlockN) {
    __syncthreads();  // waits until all warps have finished with K and V of the previous tile, which may then be
                      // overwritten
    copy_tile<Config::kThreads>(smem.k, k + key * args.k_stride.row, args.k_stride.row, args.seqlen_k - key);
    copy_tile<Config::kThreads>(smem.v, v + key * args.v_stride.row, args.v_stride.row, args.seqlen_k - key);
    __syncthreads();  // waits until Q, K and V are in shared memory; they may then be read
    scores(smem, warp);
    __syncwarp();  // waits until the warp's rows of S are complete; they may then be read
    softmax(smem, warp, state, args.scale, keys_in_tile(lane_keys, key, Config::kBlockN));
    __syncwarp();  // waits until P and the factors of the warp's rows are written; they may then be read
    weighted_values(smem, warp, state);
  }
  finish(smem, state, args, at, warp);
}

}  // namespace attend
