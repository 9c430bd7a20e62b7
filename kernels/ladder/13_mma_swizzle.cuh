// Rung 13, mma_swizzle: computes o = softmax(scale q k^T) v with mma.sync and ldmatrix, from tiles without bank
// conflicts.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, grouped heads, and rows aligned to 16 bytes.
// Requires sm_80 or newer.
// Before:   In rung 12, mma, the rows of a tile are 128 or 256 bytes apart, a multiple of the 128 bytes of all 32
//           banks. So the eight rows of an 8 x 8 matrix lie in the same four banks, and ldmatrix reads them one after
//           another.
// After:    Chunk c of row r lies at place c ^ (r % 8) (SwizzledTile), so eight rows lie in eight different groups of
//           four banks. Unlike padding, the swizzle adds no bytes, and global memory is still read in full lines.
//           Nothing else changes.
// Why:      ldmatrix.x4 loads 512 bytes in 4 cycles instead of 32.
// Costs:    The address needs an exclusive or, once for each thread and 16 columns.
// Measured: 232 TFLOP/s in bfloat16 with batch 2, 16 heads, 8192 rows and keys, d = 128 and no mask. H200, CUDA 13.0.
// Run:      `attend run --compute mma_swizzle --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   as in rung 12.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/online_softmax.cuh"
#include "../attention/work.cuh"
#include "../common/args.cuh"
#include "../common/element.cuh"
#include "../isa/mma.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "../tiles/block_reader.cuh"
#include "../tiles/smem_tile.cuh"

namespace attend {

template <class Config>
struct alignas(1024) MmaStorage {
  using QTile = SwizzledTile<Config::kBlockM, Config::kHeadDim>;
  using KeyTile = SwizzledTile<Config::kBlockN, Config::kHeadDim>;
  QTile q;
  KeyTile k;
  KeyTile v;
};

// State of a warp's 16 rows. A lane holds values of two of these rows.
template <class Config>
struct MmaRows {
  float o[Config::kHeadDim / 2] = {};  // the sum of p v, with p relative to the row maximum
  OnlineSoftmax softmax;
};

// Computes the warp's 16 rows of S = Q K^T.
template <class Config>
__device__ __forceinline__ void scores(float (&s)[Config::kBlockN / 2], const MmaStorage<Config>& smem) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const auto q = BlockReader<typename MmaStorage<Config>::QTile>::by_rows(smem.q, lane);
  const auto k = BlockReader<typename MmaStorage<Config>::KeyTile>::by_columns(smem.k, lane);
#pragma unroll
  for (int i = 0; i < Config::kHeadDim; i += kMmaDepth) {
    const OperandA q_frag = negated<Config::kNegateScores>(q.a(warp * kMmaRows, i));
#pragma unroll
    for (int key = 0; key < Config::kBlockN; key += 2 * kMmaColumns) {
      const OperandBPair k_frag = k.b_transposed(key, i);
      mma_add<ElementOf<Config>>(s + key / 2, q_frag, k_frag.half[0]);
      mma_add<ElementOf<Config>>(s + key / 2 + kAccumulatorsOfMma, q_frag, k_frag.half[1]);
    }
  }
}

// Computes the warp's rows of O += P V. The accumulators of S hold p.
template <class Config>
__device__ __forceinline__ void weighted_values(float (&o)[Config::kHeadDim / 2], const float (&p)[Config::kBlockN / 2],
                                                const MmaStorage<Config>& smem) {
  const auto v = BlockReader<typename MmaStorage<Config>::KeyTile>::by_rows(smem.v, threadIdx.x % 32);
#pragma unroll
  for (int key = 0; key < Config::kBlockN; key += kMmaDepth) {
    const OperandA p_frag = pack_operand_a<ElementOf<Config>>(p + key / 2);
#pragma unroll
    for (int col = 0; col < Config::kHeadDim; col += 2 * kMmaColumns) {
      const OperandBPair v_frag = v.b(key, col);
      mma_add<ElementOf<Config>>(o + col / 2, p_frag, v_frag.half[0]);
      mma_add<ElementOf<Config>>(o + col / 2 + kAccumulatorsOfMma, p_frag, v_frag.half[1]);
    }
  }
}

// Writes o = O / l and lse of the lane's rows that exist. Each store has two elements.
template <class Config>
__device__ __forceinline__ void finish(MmaRows<Config>& rows, const ForwardArgs& args, const HeadTile& at) {
  rows.softmax.finish();
  const int quad_lane = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int64 row = at.tile * Config::kBlockM + accumulator_row(threadIdx.x) + h * kRowHalf;
    if (row >= args.seqlen_q) continue;
    auto* o_gmem = static_cast<Bits16*>(args.o) + args.o_stride.offset(at.batch, at.head, row);
    const float inverse_sum = rows.softmax.inverse_sum(h);
#pragma unroll
    for (int col = 0; col < Config::kHeadDim; col += kColumnsOfTile) {
      const float* pair = &rows.o[col / 2 + 2 * h];
      *reinterpret_cast<uint32*>(o_gmem + col + accumulator_column(threadIdx.x)) =
          ElementOf<Config>::pack(pair[0] * inverse_sum, pair[1] * inverse_sum);
    }
    if (quad_lane == 0 && args.lse != nullptr) {
      args.lse[args.lse_stride.offset(at.batch, at.head, row)] = rows.softmax.lse(h);
    }
  }
}

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head. Each warp has 16
// rows.
template <class Config>
__device__ void mma_swizzle_forward(const ForwardArgs& args) {
  static_assert(Config::kBlockM == Config::kThreads / 32 * kMmaRows);
  static_assert(sizeof(MmaStorage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<MmaStorage<Config>*>(smem_bytes);

  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const HeadTile at = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = key_head_of(args, at.head);
  const int64 row_begin = at.tile * Config::kBlockM;
  const auto* q = static_cast<const Bits16*>(args.q) + args.q_stride.offset(at.batch, at.head, row_begin);
  const auto* k = static_cast<const Bits16*>(args.k) + args.k_stride.offset(at.batch, head_k, 0);
  const auto* v = static_cast<const Bits16*>(args.v) + args.v_stride.offset(at.batch, head_k, 0);

  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.rows(row_begin, row_begin + Config::kBlockM).end;
  const float scale_log2 = args.scale * kLog2E;

  MmaRows<Config> rows;
  copy_tile<Config::kThreads>(smem.q, q, args.q_stride.row, args.seqlen_q - row_begin);
  for (int64 key = 0; key < key_end; key += Config::kBlockN) {
    __syncthreads();  // waits until all warps have finished with K and V of the previous tile, which may then be
                      // overwritten
    copy_tile<Config::kThreads>(smem.k, k + key * args.k_stride.row, args.k_stride.row, args.seqlen_k - key);
    copy_tile<Config::kThreads>(smem.v, v + key * args.v_stride.row, args.v_stride.row, args.seqlen_k - key);
    __syncthreads();  // waits until Q, K and V are in shared memory; they may then be read
    float s[Config::kBlockN / 2] = {};
    scores<Config>(s, smem);
    if (!mask.row(row_begin).contains(key + Config::kBlockN - 1)) {  // otherwise all rows see all keys of the tile
      const int64 row = row_begin + accumulator_row(threadIdx.x);
      const int num_keys[kRowsOfThread] = {keys_in_tile(mask.row(row).end, key, Config::kBlockN),
                                           keys_in_tile(mask.row(row + kRowHalf).end, key, Config::kBlockN)};
      mask_keys(s, threadIdx.x, num_keys);
    }
    float rescale[kRowsOfThread];
    rows.softmax.update(s, scale_log2, rescale);
    scale_rows(rows.o, rescale);
    weighted_values<Config>(rows.o, s, smem);
  }
  finish<Config>(rows, args, at);
}

}  // namespace attend
