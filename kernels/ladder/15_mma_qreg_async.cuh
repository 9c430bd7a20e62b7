// Rung 15, mma_qreg_async: computes o = softmax(scale q k^T) v with mma.sync and cp.async, with 32 rows for each warp.
// This is the last rung for Ampere.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d); any strides whose last is 1.
// Supports: float16 and bfloat16, d = 64 and 128, full and causal masks, grouped heads, and rows aligned to 16 bytes.
// Requires sm_80 or newer.
// Before:   In rung 14, mma_qreg, the tile that is being copied occupies d / 4 registers, and each operand of K and V
//           is used in one product.
// After:    cp.async copies the next tile without registers. Each warp uses the freed registers for 16 more rows, so a
//           loaded operand of K or V is used in two products. At d = 128, O takes 128 registers and S takes 64, so the
//           operands of Q are read from shared memory again. m may be less than the row maximum (lagging_softmax.cuh),
//           so that O is seldom rescaled. Tiles that need no mask have a separate loop. The longest blocks of a causal
//           mask start first.
// Why:      ldmatrix loads three eighths less for each product at d = 128: 80 loads for 256 products, instead of 64 for
//           128. 128 rows instead of 64 share a read of K and V. With two blocks on a multiprocessor, each scheduler
//           has two warps. While one warp computes its softmax, the other multiplies.
// Costs:    A thread needs 255 registers, so the data of a block lies in shared memory. Only the work of the other
//           block hides the softmax of a warp.
// Measured: 388 TFLOP/s in bfloat16 with batch 2, 16 heads, 8192 rows and keys, d = 128 and no mask. H200, CUDA 13.0.
// Run:      `attend run --compute mma_qreg_async --data DIR`, with data made by `attend generate --dtype bf16`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1; FlashAttention-4 (2025) for the lagging maximum.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/lagging_softmax.cuh"
#include "../attention/work.cuh"
#include "../common/args.cuh"
#include "../common/element.cuh"
#include "../isa/cp_async.cuh"
#include "../isa/mma.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "../tiles/block_reader.cuh"
#include "../tiles/output_tile.cuh"
#include "../tiles/smem_tile.cuh"
#include "pieces/cp_async_tiles.cuh"

namespace attend {

// Work of a block. It is stored in shared memory, because accumulators need the registers.
struct BlockWork {
  HeadTile at;
  int64 first_row_end;  // one past the last key that the tile's first row would see if keys had no end. It may be
                        // negative
  int key_tiles;
  int unmasked_tiles;  // number of leading tiles of which all rows see all keys
};

template <class Config>
struct alignas(1024) AsyncStorage {
  using QTile = SwizzledTile<Config::kBlockM, Config::kHeadDim>;
  using KeyTile = SwizzledTile<Config::kBlockN, Config::kHeadDim>;
  QTile q_or_o;  // a warp reads only its rows of Q, and overwrites them with O
  struct {
    KeyTile k, v;
  } stage[2];
  BlockWork work;
};

template <class Config>
constexpr int kRowsOfWarp = Config::kBlockM / (Config::kThreads / 32);

// State of 16 rows of a warp. A lane holds values of two of these rows.
template <class Config>
struct MmaRows {
  OperandA q_frag[Config::kHeadDim / kMmaDepth];  // used if Config::kQInRegisters is set
  float s[Config::kBlockN / 2];                   // scores, and later p
  float o[Config::kHeadDim / 2] = {};             // the sum of p v, with p relative to m of the row
  OnlineSoftmax softmax;
};

template <class Config>
struct WarpRows {
  static constexpr int kTiles = kRowsOfWarp<Config> / kMmaRows;
  MmaRows<Config> tile[kTiles];
};

// Computes S = Q K^T for the warp's rows.
template <class Config>
__device__ __forceinline__ void scores(WarpRows<Config>& rows, const AsyncStorage<Config>& smem, int stage) {
  using Storage = AsyncStorage<Config>;
  const auto q = BlockReader<typename Storage::QTile>::by_rows(smem.q_or_o, recomputed_thread() % 32);
  const auto k = BlockReader<typename Storage::KeyTile>::by_columns(smem.stage[stage].k, threadIdx.x % 32);
  constexpr int kTiles = WarpRows<Config>::kTiles;
  constexpr float kZero[kAccumulatorsOfMma] = {};
#pragma unroll
  for (int i = 0; i < Config::kHeadDim; i += kMmaDepth) {
    OperandA q_frag[kTiles];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      if constexpr (Config::kQInRegisters) {
        q_frag[r] = rows.tile[r].q_frag[i / kMmaDepth];
      } else {
        q_frag[r] = negated<Config::kNegateScores>(q.a(threadIdx.x / 32 * kRowsOfWarp<Config> + r * kMmaRows, i));
      }
    }
#pragma unroll
    for (int key = 0; key < Config::kBlockN; key += 2 * kMmaColumns) {
      const OperandBPair k_frag = k.b_transposed(key, i);
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        float* s = rows.tile[r].s + key / 2;
        float* s_right = s + kAccumulatorsOfMma;
        mma_m16n8k16(ElementOf<Config>{}, s, q_frag[r], k_frag.half[0], i == 0 ? kZero : s);
        mma_m16n8k16(ElementOf<Config>{}, s_right, q_frag[r], k_frag.half[1], i == 0 ? kZero : s_right);
      }
    }
  }
}

// Computes O += P V for the warp's rows.
template <class Config>
__device__ __forceinline__ void weighted_values(WarpRows<Config>& rows, const AsyncStorage<Config>& smem, int stage) {
  using Storage = AsyncStorage<Config>;
  const auto v = BlockReader<typename Storage::KeyTile>::by_rows(smem.stage[stage].v, threadIdx.x % 32);
  constexpr int kTiles = WarpRows<Config>::kTiles;
#pragma unroll
  for (int key = 0; key < Config::kBlockN; key += kMmaDepth) {
    OperandA p_frag[kTiles];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) p_frag[r] = pack_operand_a<ElementOf<Config>>(rows.tile[r].s + key / 2);
#pragma unroll
    for (int col = 0; col < Config::kHeadDim; col += 2 * kMmaColumns) {
      const OperandBPair v_frag = v.b(key, col);
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        float* o = rows.tile[r].o + col / 2;
        mma_add<ElementOf<Config>>(o, p_frag[r], v_frag.half[0]);
        mma_add<ElementOf<Config>>(o + kAccumulatorsOfMma, p_frag[r], v_frag.half[1]);
      }
    }
  }
}

// Reads the operands of Q for the warp's rows.
template <class Config>
__device__ __forceinline__ void read_q(WarpRows<Config>& rows, const AsyncStorage<Config>& smem) {
  const auto q = BlockReader<typename AsyncStorage<Config>::QTile>::by_rows(smem.q_or_o, threadIdx.x % 32);
#pragma unroll
  for (int r = 0; r < WarpRows<Config>::kTiles; ++r) {
#pragma unroll
    for (int i = 0; i < Config::kHeadDim; i += kMmaDepth) {
      const OperandA block = q.a(threadIdx.x / 32 * kRowsOfWarp<Config> + r * kMmaRows, i);
      rows.tile[r].q_frag[i / kMmaDepth] = negated<Config::kNegateScores>(block);
    }
  }
}

// Writes o = O / l and lse of the rows that exist.
template <class Config>
__device__ __forceinline__ void finish(WarpRows<Config>& rows, AsyncStorage<Config>& smem, const ForwardArgs& args) {
  const HeadTile at = smem.work.at;
#pragma unroll
  for (int r = 0; r < WarpRows<Config>::kTiles; ++r) {
    OnlineSoftmax& state = rows.tile[r].softmax;
    state.finish();
    const int tile_row = threadIdx.x / 32 * kRowsOfWarp<Config> + r * kMmaRows;
    const int64 row_begin = at.tile * Config::kBlockM + tile_row;
    const float inverse_sum[kRowsOfThread] = {state.inverse_sum(0), state.inverse_sum(1)};
    write_accumulators<ElementOf<Config>>(smem.q_or_o, tile_row, rows.tile[r].o, inverse_sum);
    __syncwarp();  // waits until the 16 rows of O are written; they may then be read
    auto* o_gmem = static_cast<Bits16*>(args.o) + args.o_stride.offset(at.batch, at.head, row_begin);
    store_tile_rows<kMmaRows>(smem.q_or_o, tile_row, o_gmem, args.o_stride.row, args.seqlen_q - row_begin);
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const int64 row = row_begin + threadIdx.x % 32 / 4 + h * kRowHalf;
      if (threadIdx.x % 4 == 0 && args.lse != nullptr && row < args.seqlen_q) {
        args.lse[args.lse_stride.offset(at.batch, at.head, row)] = state.lse(h);
      }
    }
  }
}

// Processes one tile of keys. Computes S, its mask, P and O. `first_row_keys` is the number of the tile's keys that the
// block's first row would see if keys had no end. It may be negative.
template <class Config, bool kMasked>
__device__ __forceinline__ void attend_tile(WarpRows<Config>& rows, const AsyncStorage<Config>& smem, int stage,
                                            float scale_log2, int first_row_keys) {
  scores<Config>(rows, smem, stage);
  if constexpr (kMasked) {
    constexpr int kStep = Config::kMask == MaskKind::kCausal;  // number of keys that a row sees in addition to those of
                                                               // the row above
#pragma unroll
    for (int r = 0; r < WarpRows<Config>::kTiles; ++r) {
      const int row = recomputed_thread() / 32 * kRowsOfWarp<Config> + r * kMmaRows + threadIdx.x % 32 / 4;
      const int num_keys[kRowsOfThread] = {first_row_keys + row * kStep, first_row_keys + (row + kRowHalf) * kStep};
      mask_keys(rows.tile[r].s, threadIdx.x, num_keys);
    }
  }
  raise_maxima(rows.tile, scale_log2);
#pragma unroll
  for (MmaRows<Config>& tile : rows.tile) {
    exp2_rows(tile.s, scale_log2, tile.softmax.row_max);
    tile.softmax.add_to_sum(tile.s);
  }
  weighted_values<Config>(rows, smem, stage);
}

// Returns the work of this block.
template <class Config>
__device__ __forceinline__ BlockWork block_work(const ForwardArgs& args) {
  constexpr bool kCausal = Config::kMask == MaskKind::kCausal;
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const int64 bytes_per_head = args.seqlen_k * Config::kHeadDim * 2 * kTileElementBytes;
  const HeadTile at = kCausal ? longest_first(blockIdx.x, row_tiles, args.batch, args.num_heads_q, bytes_per_head)
                              : HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const int64 row_begin = at.tile * Config::kBlockM;
  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.rows(row_begin, row_begin + Config::kBlockM).end;
  return {.at = at,
          .first_row_end = kCausal ? mask.unbounded_row(row_begin).end : args.seqlen_k,
          .key_tiles = static_cast<int>(num_tiles(key_end, Config::kBlockN)),
          .unmasked_tiles = static_cast<int>(mask.row(row_begin).end / Config::kBlockN)};
}

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head.
template <class Config>
__device__ void mma_qreg_async_forward(const ForwardArgs& args) {
  using Storage = AsyncStorage<Config>;
  static_assert(sizeof(Storage) == Config::kSmemBytes);
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Storage*>(smem_bytes);

  const BlockWork work = block_work<Config>(args);
  if (threadIdx.x == 0) smem.work = work;
  const auto [batch, head, row_tile] = work.at;
  const uint32 head_k = key_head_of(args, head);
  const int64 row_begin = row_tile * Config::kBlockM;
  const auto* q = static_cast<const Bits16*>(args.q) + args.q_stride.offset(batch, head, row_begin);
  const auto* k = static_cast<const Bits16*>(args.k) + args.k_stride.offset(batch, head_k, 0);
  const auto* v = static_cast<const Bits16*>(args.v) + args.v_stride.offset(batch, head_k, 0);
  CpAsyncTileLoader<Config::kThreads, typename Storage::QTile> q_loader(smem.q_or_o, q, args.q_stride.row);
  CpAsyncTileLoader<Config::kThreads, typename Storage::KeyTile> k_loader(smem.stage[0].k, k, args.k_stride.row);
  CpAsyncTileLoader<Config::kThreads, typename Storage::KeyTile> v_loader(smem.stage[0].v, v, args.v_stride.row);
  const auto load_keys = [&](int n) {
    const uint32 offset = n % 2 * sizeof(smem.stage[0]);
    const int keys = static_cast<int>(args.seqlen_k) - n * Config::kBlockN;
    k_loader.load(offset, args.k_stride.row, keys);
    v_loader.load(offset, args.v_stride.row, keys);
  };

  WarpRows<Config> rows;
  const float scale_log2 = args.scale * kLog2E;
  q_loader.load(0, args.q_stride.row, static_cast<int>(args.seqlen_q - row_begin));
  cp_async_commit();
  if (work.key_tiles > 0) load_keys(0);
  cp_async_commit();
  cp_async_wait<1>();  // waits for the thread's copies of Q; copies of keys may still be in flight
  __syncthreads();     // waits for all threads' copies of Q, and for smem.work; they may then be read
  if constexpr (Config::kQInRegisters) read_q<Config>(rows, smem);

  int n = 0;
  const auto advance = [&] {
    cp_async_wait<0>();  // waits for the thread's copies of this tile
    __syncthreads();     // waits for all threads' copies, and until the previous tile in the other buffer has been
                         // read; the other buffer may then be overwritten
    if (n + 1 < smem.work.key_tiles) load_keys(n + 1);
    cp_async_commit();
  };
  for (; n < smem.work.unmasked_tiles; ++n) {
    advance();
    attend_tile<Config, false>(rows, smem, n % 2, scale_log2, 0);
  }
  for (; n < smem.work.key_tiles; ++n) {
    advance();
    const int64 first_row_keys = smem.work.first_row_end - int64{n} * Config::kBlockN;
    attend_tile<Config, true>(rows, smem, n % 2, scale_log2, static_cast<int>(first_row_keys));
  }
  finish<Config>(rows, smem, args);
}

}  // namespace attend
