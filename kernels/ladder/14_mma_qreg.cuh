// Rung 14, mma_qreg: computes o = softmax(scale q k^T) v with mma.sync, with Q in registers, one barrier for each tile,
// and 16-byte stores.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, grouped heads, and rows aligned to 16 bytes.
// Requires sm_80 or newer.
// Before:   In rung 13, mma_swizzle, each tile reads the operands of Q from shared memory again. It also waits twice
//           for all warps, before and after K and V are overwritten.
// After:    d / 4 registers hold the operands of Q for the entire kernel. K and V have two buffers each, and tiles
//           alternate between them. One barrier ensures that a tile has arrived, and that the other buffer has been
//           read. While a tile is multiplied, the chunks of the next tile are loaded into registers. o is written
//           through shared memory in 16-byte stores instead of 4-byte stores.
// Why:      There are a ninth fewer ldmatrix loads (4 of 36 for each tile at d = 64), half the barriers, and a quarter
//           of the stores. A thread waits for global memory only if a product is shorter than the latency of the load.
// Costs:    d / 4 registers hold the tile that is being copied. At d = 128, a multiprocessor then has room for two
//           blocks instead of three.
// Measured: 275 TFLOP/s in bfloat16 with batch 2, 16 heads, 8192 rows and keys, d = 128 and no mask. H200, CUDA 13.0.
// Run:      `attend run --compute mma_qreg --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1.
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
#include "../tiles/output_tile.cuh"
#include "../tiles/smem_tile.cuh"

namespace attend {

// Q and O share memory with the keys. Q is read into registers before the first keys are copied, and O is written after
// the last keys have been read.
template <class Config>
union alignas(1024) MmaStorage {
  using QTile = SwizzledTile<Config::kBlockM, Config::kHeadDim>;
  using KeyTile = SwizzledTile<Config::kBlockN, Config::kHeadDim>;
  QTile q_or_o;
  struct {
    KeyTile k, v;
  } stage[2];
};

// State of a warp's 16 rows. A lane holds values of two of these rows.
template <class Config>
struct MmaRows {
  OperandA q_frag[Config::kHeadDim / kMmaDepth];
  float o[Config::kHeadDim / 2] = {};  // the sum of p v, with p relative to the row maximum
  OnlineSoftmax softmax;
};

// Computes the warp's 16 rows of S = Q K^T.
template <class Config>
__device__ __forceinline__ void scores(float (&s)[Config::kBlockN / 2],
                                       const OperandA (&q_frag)[Config::kHeadDim / kMmaDepth],
                                       const typename MmaStorage<Config>::KeyTile& k_tile) {
  const auto k = BlockReader<typename MmaStorage<Config>::KeyTile>::by_columns(k_tile, threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < Config::kHeadDim; i += kMmaDepth) {
#pragma unroll
    for (int key = 0; key < Config::kBlockN; key += 2 * kMmaColumns) {
      const OperandBPair k_frag = k.b_transposed(key, i);
      mma_add<ElementOf<Config>>(s + key / 2, q_frag[i / kMmaDepth], k_frag.half[0]);
      mma_add<ElementOf<Config>>(s + key / 2 + kAccumulatorsOfMma, q_frag[i / kMmaDepth], k_frag.half[1]);
    }
  }
}

// Computes the warp's rows of O += P V. The accumulators of S hold p.
template <class Config>
__device__ __forceinline__ void weighted_values(float (&o)[Config::kHeadDim / 2], const float (&p)[Config::kBlockN / 2],
                                                const typename MmaStorage<Config>::KeyTile& v_tile) {
  const auto v = BlockReader<typename MmaStorage<Config>::KeyTile>::by_rows(v_tile, threadIdx.x % 32);
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

// A thread's share of a tile that is being copied from global to shared memory. The share is in registers between
// load() and store().
template <class Config>
struct TileOnItsWay {
  using Tile = typename MmaStorage<Config>::KeyTile;
  static constexpr int kRowStep = Config::kThreads / Tile::kChunks;  // a thread has one column of chunks
  uint4 chunk[Tile::kRows / kRowStep];

  __device__ __forceinline__ void load(const Bits16* source, int64 row_stride, int64 rows) {
    const int first_row = static_cast<int>(threadIdx.x) / Tile::kChunks;
    const Bits16* from = source + first_row * row_stride + threadIdx.x % Tile::kChunks * kChunkElements;
#pragma unroll
    for (int i = 0; i < Tile::kRows / kRowStep; ++i, from += kRowStep * row_stride) {
      chunk[i] = first_row + i * kRowStep < rows ? *reinterpret_cast<const uint4*>(from) : uint4{};
    }
  }
  __device__ __forceinline__ void store(Tile& tile) const {
#pragma unroll
    for (int i = 0; i < Tile::kRows / kRowStep; ++i) {
      const int row = static_cast<int>(threadIdx.x) / Tile::kChunks + i * kRowStep;
      tile.chunk[Tile::index(row, threadIdx.x % Tile::kChunks)] = chunk[i];
    }
  }
};

// Loads the operands of Q for the warp's rows, through shared memory.
template <class Config>
__device__ __forceinline__ void load_q(MmaRows<Config>& rows, MmaStorage<Config>& smem, const void* q, int64 row_stride,
                                       int64 num_rows) {
  copy_tile<Config::kThreads>(smem.q_or_o, q, row_stride, num_rows);
  __syncthreads();  // waits until Q is in shared memory; it may then be read
  const auto reader = BlockReader<typename MmaStorage<Config>::QTile>::by_rows(smem.q_or_o, threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < Config::kHeadDim; i += kMmaDepth) {
    const OperandA block = reader.a(threadIdx.x / 32 * kMmaRows, i);
    rows.q_frag[i / kMmaDepth] = negated<Config::kNegateScores>(block);
  }
  __syncthreads();  // waits until Q has been read; K and V may then overwrite it
}

// Writes o = O / l and lse of the rows that exist.
template <class Config>
__device__ __forceinline__ void finish(MmaRows<Config>& rows, MmaStorage<Config>& smem, const ForwardArgs& args,
                                       const HeadTile& at) {
  rows.softmax.finish();
  const int warp_row = threadIdx.x / 32 * kMmaRows;
  const int64 row_begin = at.tile * Config::kBlockM + warp_row;
  const float inverse_sum[kRowsOfThread] = {rows.softmax.inverse_sum(0), rows.softmax.inverse_sum(1)};
  __syncthreads();  // waits until all warps have finished with K and V; O may then overwrite them
  write_accumulators<ElementOf<Config>>(smem.q_or_o, warp_row, rows.o, inverse_sum);
  __syncwarp();  // waits until the warp's rows of O are written; they may then be read
  auto* o_gmem = static_cast<Bits16*>(args.o) + args.o_stride.offset(at.batch, at.head, row_begin);
  store_tile_rows<kMmaRows>(smem.q_or_o, warp_row, o_gmem, args.o_stride.row, args.seqlen_q - row_begin);
  if (threadIdx.x % 4 != 0 || args.lse == nullptr) return;
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int64 row = row_begin + threadIdx.x % 32 / 4 + h * kRowHalf;
    if (row < args.seqlen_q) args.lse[args.lse_stride.offset(at.batch, at.head, row)] = rows.softmax.lse(h);
  }
}

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head. Each warp has 16
// rows.
template <class Config>
__device__ void mma_qreg_forward(const ForwardArgs& args) {
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
  load_q<Config>(rows, smem, q, args.q_stride.row, args.seqlen_q - row_begin);
  copy_tile<Config::kThreads>(smem.stage[0].k, k, args.k_stride.row, args.seqlen_k);
  copy_tile<Config::kThreads>(smem.stage[0].v, v, args.v_stride.row, args.seqlen_k);
  int stage = 0;
  for (int64 key = 0; key < key_end; key += Config::kBlockN, stage ^= 1) {
    const int64 next = key + Config::kBlockN;
    const bool has_next = next < key_end;
    TileOnItsWay<Config> coming;
    __syncthreads();  // waits until this tile is written, and the previous tile in the other buffer has been read; the
                      // other buffer may then be overwritten
    if (has_next) coming.load(k + next * args.k_stride.row, args.k_stride.row, args.seqlen_k - next);
    float s[Config::kBlockN / 2] = {};
    scores<Config>(s, rows.q_frag, smem.stage[stage].k);
    if (has_next) {
      coming.store(smem.stage[stage ^ 1].k);
      coming.load(v + next * args.v_stride.row, args.v_stride.row, args.seqlen_k - next);
    }
    if (!mask.row(row_begin).contains(next - 1)) {  // otherwise all rows see all keys of the tile
      const int64 row = row_begin + accumulator_row(threadIdx.x);
      const int num_keys[kRowsOfThread] = {keys_in_tile(mask.row(row).end, key, Config::kBlockN),
                                           keys_in_tile(mask.row(row + kRowHalf).end, key, Config::kBlockN)};
      mask_keys(s, threadIdx.x, num_keys);
    }
    float rescale[kRowsOfThread];
    rows.softmax.update(s, scale_log2, rescale);
    scale_rows(rows.o, rescale);
    weighted_values<Config>(rows.o, s, smem.stage[stage].v);
    if (has_next) coming.store(smem.stage[stage ^ 1].v);
  }
  finish<Config>(rows, smem, args, at);
}

}  // namespace attend
