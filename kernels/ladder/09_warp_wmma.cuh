// Rung 09, warp_wmma: computes o = softmax(scale q k^T) v on tensor cores through nvcuda::wmma, with one warp in each
// block.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, grouped heads, and rows aligned to 16 bytes.
// Requires sm_80 or newer.
// Before:   Rung 08, fa2, computes in float32 on CUDA cores, which do 128 multiply-adds a clock on each multiprocessor.
// After:    A warp computes 16 x 16 x 16 products. S, P and O are passed through shared memory, where any thread can
//           read any element.
// Why:      A tensor core does 8 to 16 times the multiply-adds of the CUDA cores, and operands are half as wide.
// Costs:    O is read from and written to shared memory for every 32 keys. For each of the 16 rows, this is one read
//           and one write of 4 d bytes. In comparison, k and v together have 4 d bytes for each of the 32 keys. Rows of
//           a tile lie in the same banks. Every tile of 16 rows reads all of k and v from the L2 cache. So this rung is
//           slower than rung 08, and so are rungs 10 and 11. The tensor cores wait for other work, which rungs 12 and
//           13 make cheap. Measured: 16 TFLOP/s in bfloat16 with batch 2, 16 heads, 8192 rows and keys, d = 128 and no
//           mask. H200, CUDA 13.0.
// Run:      `attend run --compute warp_wmma --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1; CUDA C++ Programming Guide, Warp matrix functions.
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

// Tiles of one warp. Lane i works on key i of a tile, so kBlockN = 32.
template <class Config>
struct alignas(128) WarpStorage {
  using Element = typename WmmaElement<Config::kElement>::Type;
  RowMajorTile<Config::kBlockM, Config::kHeadDim> q;
  RowMajorTile<Config::kBlockN, Config::kHeadDim> k;
  RowMajorTile<Config::kBlockN, Config::kHeadDim> v;
  float s[Config::kBlockM][Config::kBlockN];
  Element p[Config::kBlockM][Config::kBlockN];
  float o[Config::kBlockM][Config::kHeadDim];  // the sum of exp(s - m) v
};

// State of the online softmax of kRows rows. Every lane has m of each row, and the sum over its keys of each row.
template <int kRows>
struct RowState {
  float max[kRows];
  float sum[kRows];
};

// Computes S = Q K^T for the tile.
template <class Config>
__device__ __forceinline__ void scores(WarpStorage<Config>& smem) {
  using Element = typename WarpStorage<Config>::Element;
  const auto* q = reinterpret_cast<const Element*>(smem.q.chunk);
  const auto* k = reinterpret_cast<const Element*>(smem.k.chunk);
#pragma unroll
  for (int col = 0; col < Config::kBlockN; col += kWmmaTile) {
    FragmentC s_frag;
    nvcuda::wmma::fill_fragment(s_frag, 0.0f);
#pragma unroll
    for (int i = 0; i < Config::kHeadDim; i += kWmmaTile) {
      FragmentA<Element> q_frag;
      FragmentBTransposed<Element> k_frag;
      nvcuda::wmma::load_matrix_sync(q_frag, q + i, Config::kHeadDim);
      nvcuda::wmma::load_matrix_sync(k_frag, k + col * Config::kHeadDim + i, Config::kHeadDim);
      nvcuda::wmma::mma_sync(s_frag, q_frag, k_frag, s_frag);
    }
    nvcuda::wmma::store_matrix_sync(&smem.s[0][col], s_frag, Config::kBlockN, nvcuda::wmma::mem_row_major);
  }
}

// Computes m, l, P and the rescaled O of each row. Row 0 sees the first first_visible keys of the tile, and each row
// sees `visible_step` more keys than the row above.
template <class Config>
__device__ __forceinline__ void softmax(WarpStorage<Config>& smem, RowState<Config::kBlockM>& stats, float scale,
                                        int64 first_visible, int visible_step) {
  using Element = typename WarpStorage<Config>::Element;
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int row = 0; row < Config::kBlockM; ++row) {
    const bool is_visible = lane < first_visible + row * visible_step;
    const float score = is_visible ? scale * smem.s[row][lane] : -kInfinity;
    const float new_max = fmaxf(stats.max[row], warp_max(score));
    const float base = exponent_base(new_max);
    const float rescale = __expf(stats.max[row] - base);
    const float p = __expf(score - base);
    smem.p[row][lane] = Element(p);
    stats.sum[row] = stats.sum[row] * rescale + p;
    stats.max[row] = new_max;
#pragma unroll
    for (int col = 0; col < Config::kHeadDim; col += 32) smem.o[row][col + lane] *= rescale;
  }
}

// Computes O += P V.
template <class Config>
__device__ __forceinline__ void weighted_values(WarpStorage<Config>& smem) {
  using Element = typename WarpStorage<Config>::Element;
  const auto* v = reinterpret_cast<const Element*>(smem.v.chunk);
#pragma unroll
  for (int col = 0; col < Config::kHeadDim; col += kWmmaTile) {
    FragmentC o_frag;
    nvcuda::wmma::load_matrix_sync(o_frag, &smem.o[0][col], Config::kHeadDim, nvcuda::wmma::mem_row_major);
#pragma unroll
    for (int key = 0; key < Config::kBlockN; key += kWmmaTile) {
      FragmentA<Element> p_frag;
      FragmentB<Element> v_frag;
      nvcuda::wmma::load_matrix_sync(p_frag, &smem.p[0][key], Config::kBlockN);
      nvcuda::wmma::load_matrix_sync(v_frag, v + key * Config::kHeadDim + col, Config::kHeadDim);
      nvcuda::wmma::mma_sync(o_frag, p_frag, v_frag, o_frag);
    }
    nvcuda::wmma::store_matrix_sync(&smem.o[0][col], o_frag, Config::kHeadDim, nvcuda::wmma::mem_row_major);
  }
}

// Writes o = O / l and lse of the rows that exist.
template <class Config>
__device__ __forceinline__ void finish(WarpStorage<Config>& smem, const RowState<Config::kBlockM>& stats,
                                       const ForwardArgs& args, const HeadTile& at) {
  using Element = typename WarpStorage<Config>::Element;
  const int lane = static_cast<int>(threadIdx.x);
  const int64 row_begin = at.tile * Config::kBlockM;
#pragma unroll
  for (int row = 0; row < Config::kBlockM; ++row) {
    const float sum = warp_sum(stats.sum[row]);
    if (row_begin + row >= args.seqlen_q) continue;
    const float inverse_sum = inverse_or_zero(sum);
    auto* o = static_cast<Element*>(args.o) + args.o_stride.offset(at.batch, at.head, row_begin + row);
#pragma unroll
    for (int col = lane; col < Config::kHeadDim; col += 32) o[col] = Element(smem.o[row][col] * inverse_sum);
    if (lane == 0 && args.lse != nullptr) {
      const float lse = sum == 0.0f ? -kInfinity : stats.max[row] + logf(sum);
      args.lse[args.lse_stride.offset(at.batch, at.head, row_begin + row)] = lse;
    }
  }
}

// Computes a tile of rows. The grid has one block of one warp for each tile of kBlockM = 16 rows of every query head.
template <class Config>
__device__ void warp_wmma_forward(const ForwardArgs& args) {
  static_assert(Config::kThreads == 32 && Config::kBlockM == kWmmaTile && Config::kBlockN == 32);
  static_assert(sizeof(WarpStorage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(128) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<WarpStorage<Config>*>(smem_bytes);
  using Element = typename WarpStorage<Config>::Element;

  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const HeadTile at = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = key_head_of(args, at.head);
  const int64 row_begin = at.tile * Config::kBlockM;
  const auto* q = static_cast<const Element*>(args.q) + args.q_stride.offset(at.batch, at.head, row_begin);
  const auto* k = static_cast<const Element*>(args.k) + args.k_stride.offset(at.batch, head_k, 0);
  const auto* v = static_cast<const Element*>(args.v) + args.v_stride.offset(at.batch, head_k, 0);

  constexpr bool kCausal = Config::kMask == MaskKind::kCausal;
  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.rows(row_begin, row_begin + Config::kBlockM).end;
  // Without a mask, all rows see seqlen_k keys. A causal row sees one key more than the row above, up to seqlen_k
  const int64 first_limit = kCausal ? row_begin + args.seqlen_k - args.seqlen_q + 1 : args.seqlen_k;

  RowState<Config::kBlockM> stats;
#pragma unroll
  for (int row = 0; row < Config::kBlockM; ++row) {
    stats.max[row] = -kInfinity;
    stats.sum[row] = 0.0f;
#pragma unroll
    for (int col = 0; col < Config::kHeadDim; col += 32) smem.o[row][col + threadIdx.x] = 0.0f;
  }
  copy_tile<Config::kThreads>(smem.q, q, args.q_stride.row, args.seqlen_q - row_begin);

  for (int64 key = 0; key < key_end; key += Config::kBlockN) {
    copy_tile<Config::kThreads>(smem.k, k + key * args.k_stride.row, args.k_stride.row, args.seqlen_k - key);
    copy_tile<Config::kThreads>(smem.v, v + key * args.v_stride.row, args.v_stride.row, args.seqlen_k - key);
    __syncwarp();  // waits until Q, K and V are in shared memory; they may then be read as matrices
    scores(smem);
    __syncwarp();  // waits until S is written; any lane may then read any element
    softmax(smem, stats, args.scale, first_limit - key, kCausal ? 1 : 0);
    __syncwarp();  // waits until P and the rescaled O are written; they may then be read as matrices
    weighted_values(smem);
    __syncwarp();  // waits until O is written, and K and V have been read; K and V may then be overwritten
  }
  finish(smem, stats, args, at);
}

}  // namespace attend
