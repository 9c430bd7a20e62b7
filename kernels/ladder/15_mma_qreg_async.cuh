// Rung 15
#pragma once

#include "../common/accumulator_mask.cuh"
#include "../common/args.cuh"
#include "../common/cp_async.cuh"
#include "../common/element.cuh"
#include "../common/key_range.cuh"
#include "../common/mma.cuh"
#include "../common/online_softmax.cuh"
#include "../common/output_tile.cuh"
#include "../common/smem_tile.cuh"
#include "../common/work.cuh"

namespace attend {

// Each warp reads its own rows of Q only, and writes O over them.
template <class Config>
struct alignas(1024) AsyncStorage {
  using QTile = SwizzledTile<Config::kBlockM, Config::kHeadDim>;
  using KeyTile = SwizzledTile<Config::kBlockN, Config::kHeadDim>;
  QTile q_or_o;
  struct {
    KeyTile k, v;
  } stage[2];
};

template <class Config>
constexpr int kRowsOfWarp = Config::kBlockM / (Config::kThreads / 32);

// What a warp computes of 16 of its rows; a lane has two of them.
template <class Config>
struct RowTile {
  OperandA q_frag[Config::kHeadDim / kMmaDepth];  // where Config::kQInRegisters
  float o_frag[Config::kHeadDim / 2] = {};        // sum of p v, relative to the row's maximum
  OnlineSoftmax softmax;
};

template <class Config>
struct WarpRows {
  static constexpr int kTiles = kRowsOfWarp<Config> / kMmaRows;
  RowTile<Config> tile[kTiles];
  float s_frag[kTiles][Config::kBlockN / 2];
};

template <class Config, bool kWhole, class Tile>
__device__ __forceinline__ void load_tile(Tile& tile, const void* source, int64 row_stride, int64 rows) {
  constexpr int kRowStep = Config::kThreads / Tile::kChunks;
  const int first_row = static_cast<int>(threadIdx.x) / Tile::kChunks;
  const int column = static_cast<int>(threadIdx.x) % Tile::kChunks;
  const int num_rows = rows < Tile::kRows ? static_cast<int>(rows) : Tile::kRows;
  const auto* from = static_cast<const char*>(source) + first_row * row_stride * 2 + column * kChunkBytes;
#pragma unroll
  for (int i = 0; i < Tile::kRows; i += kRowStep, from += kRowStep * 2 * row_stride) {
    const uint32 to = smem_address(&tile.chunk[Tile::index(first_row + i, column)]);
    if constexpr (kWhole) {
      cp_async_16(to, from);
    } else {
      cp_async_16_or_zero(to, from, first_row + i < num_rows);
    }
  }
}

// S = Q K^T.
template <class Config>
__device__ __forceinline__ void scores(WarpRows<Config>& rows, const AsyncStorage<Config>& smem, int stage) {
  using Storage = AsyncStorage<Config>;
  const auto q = BlockReader<typename Storage::QTile>::by_rows(smem.q_or_o, threadIdx.x % 32);
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
        float* s = rows.s_frag[r] + key / 2;
        mma_m16n8k16(ElementOf<Config>{}, s, q_frag[r], k_frag.half[0], i == 0 ? kZero : s);
        mma_m16n8k16(ElementOf<Config>{}, s + 4, q_frag[r], k_frag.half[1], i == 0 ? kZero : s + 4);
      }
    }
  }
}

// O += P V.
template <class Config>
__device__ __forceinline__ void weighted_values(WarpRows<Config>& rows, const AsyncStorage<Config>& smem, int stage) {
  using Storage = AsyncStorage<Config>;
  const auto v = BlockReader<typename Storage::KeyTile>::by_rows(smem.stage[stage].v, threadIdx.x % 32);
  constexpr int kTiles = WarpRows<Config>::kTiles;
#pragma unroll
  for (int key = 0; key < Config::kBlockN; key += kMmaDepth) {
    OperandA p_frag[kTiles];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) p_frag[r] = pack_operand_a<ElementOf<Config>>(rows.s_frag[r] + key / 2);
#pragma unroll
    for (int col = 0; col < Config::kHeadDim; col += 2 * kMmaColumns) {
      const OperandBPair v_frag = v.b(key, col);
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        float* o = rows.tile[r].o_frag + col / 2;
        mma_add<ElementOf<Config>>(o, p_frag[r], v_frag.half[0]);
        mma_add<ElementOf<Config>>(o + kAccumulatorsOfMma, p_frag[r], v_frag.half[1]);
      }
    }
  }
}

// The maximum may lag behind by this, in powers of two: p stays below 2^8, which every type holds as exactly as 1.
constexpr float kMaxLag = 8.0f;

// Scores become p. O and l are rescaled only where a maximum has grown by more than kMaxLag.
template <class Config>
__device__ __forceinline__ void softmax(WarpRows<Config>& rows, float scale_log2) {
  constexpr int kTiles = WarpRows<Config>::kTiles;
  float tile_max[kTiles][kRowsOfThread];
  bool has_grown = false;
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      tile_max[r][h] = quad_max(thread_row_max(rows.s_frag[r], h)) * scale_log2;
      has_grown |= tile_max[r][h] > rows.tile[r].softmax.row_max[h] + (Config::kConditional ? kMaxLag : -1e30f);
    }
  }
  if (__any_sync(0xffffffffu, has_grown)) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      OnlineSoftmax& state = rows.tile[r].softmax;
      float rescale[kRowsOfThread];
#pragma unroll
      for (int h = 0; h < kRowsOfThread; ++h) {
        const float old_max = state.row_max[h];
        state.row_max[h] = fmaxf(old_max, tile_max[r][h]);
        rescale[h] = exp2_fast(old_max - exponent_base(state.row_max[h]));
        state.row_sum[h] *= rescale[h];
      }
      scale_rows(rows.tile[r].o_frag, rescale);
    }
  }
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    exp2_rows(rows.s_frag[r], scale_log2, rows.tile[r].softmax.row_max);
    rows.tile[r].softmax.add_to_sum(rows.s_frag[r]);
  }
}

// o = O / l and lse of the rows that are there.
template <class Config>
__device__ __forceinline__ void finish(WarpRows<Config>& rows, AsyncStorage<Config>& smem, const ForwardArgs& args,
                                       const HeadTile& at) {
#pragma unroll
  for (int r = 0; r < WarpRows<Config>::kTiles; ++r) {
    OnlineSoftmax& state = rows.tile[r].softmax;
    state.finish();
    const int tile_row = threadIdx.x / 32 * kRowsOfWarp<Config> + r * kMmaRows;
    const int64 row_begin = at.tile * Config::kBlockM + tile_row;
    const float inverse_sum[kRowsOfThread] = {state.inverse_sum(0), state.inverse_sum(1)};
    write_accumulators<ElementOf<Config>>(smem.q_or_o, tile_row, rows.tile[r].o_frag, inverse_sum);
    __syncwarp();  // the 16 rows of O are there
    auto* o = static_cast<Bits16*>(args.o) + args.o_stride.offset(at.batch, at.head, row_begin);
    store_rows<kMmaRows>(smem.q_or_o, tile_row, o, args.o_stride.row, args.seqlen_q - row_begin);
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const int64 row = row_begin + threadIdx.x % 32 / 4 + h * kRowHalf;
      if (threadIdx.x % 4 == 0 && args.lse != nullptr && row < args.seqlen_q) {
        args.lse[args.lse_stride.offset(at.batch, at.head, row)] = state.lse(h);
      }
    }
  }
}

template <class Config, bool kMasked>
__device__ __forceinline__ void attend_tile(WarpRows<Config>& rows, const AsyncStorage<Config>& smem, int stage,
                                            const WindowMask& mask, int64 row_begin, int64 key, float scale_log2) {
  scores<Config>(rows, smem, stage);
  if constexpr (kMasked) {
#pragma unroll
    for (int r = 0; r < WarpRows<Config>::kTiles; ++r) {
      const int64 row = row_begin + threadIdx.x / 32 * kRowsOfWarp<Config> + r * kMmaRows + threadIdx.x % 32 / 4;
      const int num_keys[kRowsOfThread] = {keys_in_tile(mask.row(row).end, key, Config::kBlockN),
                                           keys_in_tile(mask.row(row + kRowHalf).end, key, Config::kBlockN)};
      mask_keys(rows.s_frag[r], threadIdx.x, num_keys);
    }
  }
  softmax<Config>(rows, scale_log2);
  weighted_values<Config>(rows, smem, stage);
}

// Grid: tiles of kBlockM rows of every query head.
template <class Config>
__device__ void mma_qreg_async_forward(const ForwardArgs& args) {
  static_assert(sizeof(AsyncStorage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<AsyncStorage<Config>*>(smem_bytes);

  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  HeadTile at = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  if (Config::kMask == MaskKind::kCausal) at.tile = row_tiles - 1 - at.tile;  // the longest first
  const uint32 head_k = at.head / (args.num_heads_q / args.num_heads_k);
  const int64 row_begin = at.tile * Config::kBlockM;
  const auto* q = static_cast<const Bits16*>(args.q) + args.q_stride.offset(at.batch, at.head, row_begin);
  const auto* k = static_cast<const Bits16*>(args.k) + args.k_stride.offset(at.batch, head_k, 0);
  const auto* v = static_cast<const Bits16*>(args.v) + args.v_stride.offset(at.batch, head_k, 0);

  const WindowMask mask = {args.seqlen_q, args.seqlen_k, kOpenWindow,
                           Config::kMask == MaskKind::kCausal ? 0 : kOpenWindow};
  const int num_key_tiles = num_tiles(mask.rows(row_begin, row_begin + Config::kBlockM).end, Config::kBlockN);
  const int num_unmasked = mask.row(row_begin).end / Config::kBlockN;
  const float scale_log2 = args.scale * kLog2E;

  const auto load_keys = [&](int tile) {
    const int64 key = int64{tile} * Config::kBlockN;
    auto& stage = smem.stage[tile % 2];
    const int64 k_row = args.k_stride.row, v_row = args.v_stride.row;
    if (key + Config::kBlockN <= args.seqlen_k) {
      load_tile<Config, true>(stage.k, k + key * k_row, k_row, Config::kBlockN);
      load_tile<Config, true>(stage.v, v + key * v_row, v_row, Config::kBlockN);
    } else {
      load_tile<Config, false>(stage.k, k + key * k_row, k_row, args.seqlen_k - key);
      load_tile<Config, false>(stage.v, v + key * v_row, v_row, args.seqlen_k - key);
    }
  };

  WarpRows<Config> rows;
  load_tile<Config, false>(smem.q_or_o, q, args.q_stride.row, args.seqlen_q - row_begin);
  cp_async_commit();
  if (num_key_tiles > 0) load_keys(0);
  cp_async_commit();
  if constexpr (Config::kQInRegisters) {
    cp_async_wait<1>();
    __syncthreads();
    const auto reader = BlockReader<typename AsyncStorage<Config>::QTile>::by_rows(smem.q_or_o, threadIdx.x % 32);
#pragma unroll
    for (int r = 0; r < WarpRows<Config>::kTiles; ++r) {
#pragma unroll
      for (int i = 0; i < Config::kHeadDim; i += kMmaDepth) {
        const OperandA block = reader.a(threadIdx.x / 32 * kRowsOfWarp<Config> + r * kMmaRows, i);
        rows.tile[r].q_frag[i / kMmaDepth] = negated<Config::kNegateScores>(block);
      }
    }
  }
  int tile = 0;
  const auto advance = [&] {
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < num_key_tiles) load_keys(tile + 1);
    cp_async_commit();
  };
  for (; tile < num_unmasked; ++tile) {
    advance();
    attend_tile<Config, false>(rows, smem, tile % 2, mask, row_begin, int64{tile} * Config::kBlockN, scale_log2);
  }
  for (; tile < num_key_tiles; ++tile) {
    advance();
    attend_tile<Config, true>(rows, smem, tile % 2, mask, row_begin, int64{tile} * Config::kBlockN, scale_log2);
  }
  if (num_key_tiles == 0) {
    cp_async_wait<0>();
    __syncthreads();
  }
  finish<Config>(rows, smem, args, at);
}

}  // namespace attend
