// Rung 11, wmma_row_block: o = softmax(scale q k^T) v with nvcuda::wmma, each warp owning its rows, O in registers.
//
// Shapes   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1
// Supports float16 and bfloat16, d = 64 and 128, full and causal masks, grouped heads, rows on 16 bytes. sm_80 and newer
// Before   10 block_wmma: products divided by columns, so every step of a tile waited for all warps
// After    divided by rows: S, P, m, l and O of 16 rows belong to one warp, which waits for nobody but to share K and V.
//          O stays in accumulators: its rescale factors are loaded as an accumulator themselves, from a matrix whose
//          rows hold them, because wmma does not tell where an element is
// Why      two barriers a tile instead of four; 16 d bytes less a row and tile through shared memory (O written by the
//          product and by the rescale, and read for both); 128 rows instead of 64 read k and v once
// Costs    S and P still pass through shared memory, and the rows of a tile share banks: each fragment of K takes eight
//          times the cycles it needs
// Run      attend run --compute wmma_row_block --data DIR
// Source   Dao, FlashAttention-2 (2023), Algorithm 1 and section 3.3, figure 3(b)
#pragma once

#include "../common/args.cuh"
#include "../common/key_range.cuh"
#include "../common/numbers.cuh"
#include "../common/smem_tile.cuh"
#include "../common/wmma_types.cuh"
#include "../common/work.cuh"

namespace attend {

// A row of S. Once it is read, what comes of it takes its place: its row of P and the factor for its row of O.
template <class Config>
union alignas(32) ScoreRow {
  float s[Config::kBlockN];
  struct {
    typename WmmaElement<Config::kElement>::Type p[Config::kBlockN];
    float factor[kWmmaTile];  // 16 times the same
  } after;
  float o[kWmmaTile];  // of the output, at the end
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

// What a warp keeps of its 16 rows: O in fragments of 16 columns; m, known to every lane; a lane's own keys' part of l.
template <class Config>
struct RowState {
  FragmentC o_frag[Config::kHeadDim / kWmmaTile];  // sum of exp(s - m) v
  float max[kWmmaTile];
  float sum[kWmmaTile];

  __device__ __forceinline__ RowState() {
#pragma unroll
    for (auto& frag : o_frag) nvcuda::wmma::fill_fragment(frag, 0.0f);
#pragma unroll
    for (float& m : max) m = -kInfinity;
#pragma unroll
    for (float& l : sum) l = 0.0f;
  }
};

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The warp's rows of S = Q K^T.
template <class Config>
__device__ __forceinline__ void scores(RowBlockStorage<Config>& smem, int warp) {
  using Element = typename RowBlockStorage<Config>::Element;
  constexpr int kTiles = Config::kBlockN / kWmmaTile;
  const auto* q = reinterpret_cast<const Element*>(smem.q.chunk) + warp * kWmmaTile * Config::kHeadDim;
  const auto* k = reinterpret_cast<const Element*>(smem.k.chunk);
  FragmentC s_frag[kTiles];
#pragma unroll
  for (auto& tile : s_frag) nvcuda::wmma::fill_fragment(tile, 0.0f);
#pragma unroll
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

// m, l, P and the rescale factors of the warp's rows. Row 0 of the warp sees the first first_visible keys of the tile,
// and each row `visible_step` more than the one above.
template <class Config>
__device__ __forceinline__ void softmax(RowBlockStorage<Config>& smem, int warp, RowState<Config>& state, float scale,
                                        int64 first_visible, int visible_step) {
  using Element = typename RowBlockStorage<Config>::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kWmmaTile; ++i) {
    ScoreRow<Config>& row = smem.score[warp * kWmmaTile + i];
    const int64 visible = first_visible + i * visible_step;
    const float score0 = lane < visible ? scale * row.s[lane] : -kInfinity;
    const float score1 = lane + 32 < visible ? scale * row.s[lane + 32] : -kInfinity;
    const float new_max = fmaxf(state.max[i], warp_max(fmaxf(score0, score1)));
    const float base = new_max == -kInfinity ? 0.0f : new_max;  // -inf - -inf would be NaN
    const float rescale = __expf(state.max[i] - base);
    const float p0 = __expf(score0 - base);
    const float p1 = __expf(score1 - base);
    __syncwarp();  // all lanes have read the row: P may be written over it
    row.after.p[lane] = Element(p0);
    row.after.p[lane + 32] = Element(p1);
    if (lane < kWmmaTile) row.after.factor[lane] = rescale;
    state.sum[i] = state.sum[i] * rescale + (p0 + p1);
    state.max[i] = new_max;
  }
}

// The warp's rows of O = factor O + P V.
template <class Config>
__device__ __forceinline__ void weighted_values(RowBlockStorage<Config>& smem, int warp, RowState<Config>& state) {
  using Element = typename RowBlockStorage<Config>::Element;
  const auto* v = reinterpret_cast<const Element*>(smem.v.chunk);
  const ScoreRow<Config>* rows = &smem.score[warp * kWmmaTile];
  FragmentC factor;  // has a row's factor wherever o_frag has an element of the row
  nvcuda::wmma::load_matrix_sync(factor, rows->after.factor, RowBlockStorage<Config>::kFloatStride,
                                 nvcuda::wmma::mem_row_major);
  FragmentA<Element> p_frag[Config::kBlockN / kWmmaTile];
#pragma unroll
  for (int i = 0; i < Config::kBlockN / kWmmaTile; ++i) {
    nvcuda::wmma::load_matrix_sync(p_frag[i], &rows->after.p[i * kWmmaTile], RowBlockStorage<Config>::kElementStride);
  }
#pragma unroll
  for (int col = 0; col < Config::kHeadDim / kWmmaTile; ++col) {
#pragma unroll
    for (int i = 0; i < factor.num_elements; ++i) state.o_frag[col].x[i] *= factor.x[i];
#pragma unroll
    for (int i = 0; i < Config::kBlockN / kWmmaTile; ++i) {
      FragmentB<Element> v_frag;
      nvcuda::wmma::load_matrix_sync(v_frag, v + i * kWmmaTile * Config::kHeadDim + col * kWmmaTile, Config::kHeadDim);
      nvcuda::wmma::mma_sync(state.o_frag[col], p_frag[i], v_frag, state.o_frag[col]);
    }
  }
}

// o = O / l and lse of the warp's rows that are there; O goes through the rows of S, 16 columns at a time.
template <class Config>
__device__ __forceinline__ void finish(RowBlockStorage<Config>& smem, RowState<Config>& state, const ForwardArgs& args,
                                       const HeadTile& at, int warp) {
  using Element = typename RowBlockStorage<Config>::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64 row_begin = at.tile * Config::kBlockM + warp * kWmmaTile;
  ScoreRow<Config>* rows = &smem.score[warp * kWmmaTile];
#pragma unroll
  for (int i = 0; i < kWmmaTile; ++i) {
    state.sum[i] = warp_sum(state.sum[i]);
    if (lane != 0 || args.lse == nullptr || row_begin + i >= args.seqlen_q) continue;
    const float lse = state.sum[i] == 0.0f ? -kInfinity : state.max[i] + logf(state.sum[i]);
    args.lse[args.lse_stride.offset(at.batch, at.head, row_begin + i)] = lse;
  }
  const int first_row = lane / kWmmaTile;  // a lane stores one column of every other row
  const int col = lane % kWmmaTile;
#pragma unroll
  for (int tile = 0; tile < Config::kHeadDim / kWmmaTile; ++tile) {
    __syncwarp();  // the rows have been read: they may be overwritten
    nvcuda::wmma::store_matrix_sync(rows->o, state.o_frag[tile], RowBlockStorage<Config>::kFloatStride,
                                    nvcuda::wmma::mem_row_major);
    __syncwarp();  // the 16 columns are there
#pragma unroll
    for (int i = 0; i < kWmmaTile; i += 2) {
      const float sum = first_row == 0 ? state.sum[i] : state.sum[i + 1];
      const int64 row = row_begin + i + first_row;
      if (row >= args.seqlen_q) continue;
      auto* o = static_cast<Element*>(args.o) + args.o_stride.offset(at.batch, at.head, row);
      const float inverse_sum = sum == 0.0f ? 0.0f : 1.0f / sum;  // 0: the row saw nothing
      o[tile * kWmmaTile + col] = Element(rows[i + first_row].o[col] * inverse_sum);
    }
  }
}

// Grid: tiles of kBlockM rows of every query head, 16 rows a warp.
template <class Config>
__device__ void wmma_row_block_forward(const ForwardArgs& args) {
  static_assert(Config::kBlockN == 64 && Config::kBlockM == Config::kThreads / 32 * kWmmaTile);
  static_assert(sizeof(RowBlockStorage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(128) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<RowBlockStorage<Config>*>(smem_bytes);
  using Element = typename RowBlockStorage<Config>::Element;

  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const HeadTile at = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = at.head / (args.num_heads_q / args.num_heads_k);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64 row_begin = at.tile * Config::kBlockM;
  const auto* q = static_cast<const Element*>(args.q) + args.q_stride.offset(at.batch, at.head, row_begin);
  const auto* k = static_cast<const Element*>(args.k) + args.k_stride.offset(at.batch, head_k, 0);
  const auto* v = static_cast<const Element*>(args.v) + args.v_stride.offset(at.batch, head_k, 0);

  constexpr bool kCausal = Config::kMask == MaskKind::kCausal;
  const WindowMask mask = {args.seqlen_q, args.seqlen_k, kOpenWindow, kCausal ? 0 : kOpenWindow};
  const int64 key_end = mask.rows(row_begin, row_begin + Config::kBlockM).end;
  // Without a mask all rows see seqlen_k keys; a causal row sees one more than the row above, up to seqlen_k.
  const int64 warp_row = row_begin + warp * kWmmaTile;
  const int64 first_limit = kCausal ? warp_row + args.seqlen_k - args.seqlen_q + 1 : args.seqlen_k;

  RowState<Config> state;
  copy_tile<Config::kThreads>(smem.q, q, args.q_stride.row, args.seqlen_q - row_begin);
  for (int64 key = 0; key < key_end; key += Config::kBlockN) {
    __syncthreads();  // all warps are done with K and V of the tile before: they may be overwritten
    copy_tile<Config::kThreads>(smem.k, k + key * args.k_stride.row, args.k_stride.row, args.seqlen_k - key);
    copy_tile<Config::kThreads>(smem.v, v + key * args.v_stride.row, args.v_stride.row, args.seqlen_k - key);
    __syncthreads();  // Q, K and V are there
    scores(smem, warp);
    __syncwarp();  // the warp's rows of S are whole
    softmax(smem, warp, state, args.scale, first_limit - key, kCausal ? 1 : 0);
    __syncwarp();  // its P and factors are there
    weighted_values(smem, warp, state);
  }
  finish(smem, state, args, at, warp);
}

}  // namespace attend
