// sm80_backward without options between s and p: dq, dk and dv in one pass, masks only.
//
// Shapes   as in sm80_backward.cuh; d and d_v multiples of 8, all addresses of 16 bytes
// Supports float16 and bfloat16, masks, packed sequences, grouped heads. sm_80 and later. dq's additions are in no
//          fixed order
// Work     a block owns a tile of keys and streams over query rows. ds of all its warps meets in shared memory, and
//          one barrier later they divide its product with the block's keys among them (sm80_backward_dq.cuh).
//          kRoles 1: a warp has 16 kRowGroups keys, their s, dp, dk and dv. kRoles 2: half of the warps have s and dv,
//          the others dp and dk of the same keys, and p goes through shared memory, in float: rounded for ds as it is
//          for dv it would add errors that the products' own do not hide. Twice as many keys a warp, so half as many
//          operands are read for a product. kParts 2: two warps of a kind share keys; each has half of the
//          streamed rows of s or dp, and half of the columns of its gradient
// Memory   Sm80BackwardStorage: ds of two tiles; or of one, with p in float, and rounded where warps share keys
// Measured bf16, H200, CUDA 13.0, full and causal, TFLOP/s of 10 B H S^2 D: (2, 32, 8192, 64) 292, 280; (2, 16, 8192,
//          128) 330, 313; (2, 8, 8192, 256) 268, 259. At 128 columns kRoles 1 gave 258; at 64 kRoles 2 gave 231. On no
//          other GPU
// Called   by compute 'sm80_backward': src/cuda/launch/sm80_backward.cpp; tiles: sm80_backward_variant.cpp
// Source   Dao, FlashAttention-2 (2023), Algorithm 2
#pragma once

#include "../isa/named_barrier.cuh"
#include "../tiles/output_tile.cuh"
#include "sm80_backward_plain_scores.cuh"

namespace attend {

template <class Config>
struct Sm80PlainShape : Sm80BackwardShape<Config> {
  using Shape = Sm80BackwardShape<Config>;
  static constexpr int kRows = Config::kRoles == 2 ? Config::kStreamed / Config::kParts : Config::kStep;  // of scores
  static constexpr int kColumns = round_up(ceil_div(Shape::kDepth, Config::kParts), 2 * kMmaColumns);
  static constexpr int kColumnsV = round_up(ceil_div(Shape::kDepthV, Config::kParts), 2 * kMmaColumns);
  using ScoreTile = typename Sm80BackwardStorage<Config>::ScoreTile;
  static_assert(Config::kAddsDq && Config::kStreamed % kRows == 0 && (Config::kRoles == 2 || Config::kParts == 1));
};

// Sums of a warp: of the columns that are its own.
template <class Config>
using Sm80KeySums = float[Config::kRowGroups][Sm80PlainShape<Config>::kColumns / 2];
template <class Config>
using Sm80ValueSums = float[Config::kRowGroups][Sm80PlainShape<Config>::kColumnsV / 2];

// Numbers of barriers. Warps of two kinds come to the same one from different places.
enum Sm80Barrier { kSm80HeadBarrier = 1, kSm80TileBarrier, kSm80ScoresBarrier, kSm80FirstPairBarrier };

// Until all warps of the block are there, of either role.
template <class Config>
__device__ __forceinline__ void sm80_wait_all(Sm80Barrier barrier) {
  barrier_wait_of_roles<Config::kThreads>(barrier);
}

// Tiles of scores where kRoles is 2: ds, and, rounded, p, if warps share keys.
constexpr int kSm80DsTile = 0;
constexpr int kSm80PTile = 1;

// Of kParts warps that share keys, which one this is.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_part() {
  return recomputed_thread() / 32 % Config::kParts;
}

// Where a head's first streamed tile begins.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_first_tile(const Sm80BackwardBlock<Config>& block) {
  return block.streamed.begin / Config::kStreamed * Config::kStreamed;
}

// Tile `row` has come, and the next one is sent for.
template <class Config>
__device__ __forceinline__ void sm80_plain_begin_tile(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                      int row) {
  cp_async_wait<0>();  // the thread's part of the tile is there, and of what the block owns
  // All parts are; the tile before, in the other buffer, is no longer read, nor p of it; and all of its ds is there.
  sm80_wait_all<Config>(kSm80TileBarrier);
  if (row + Config::kStreamed < smem.block.streamed.end) sm80_send_streamed(smem, args, row + Config::kStreamed);
  cp_async_commit();
}

// gradient += x streamed, x of the warp's keys and a whole tile of rows from shared memory.
template <class Config, int kColumns, class StreamedTile>
__device__ __forceinline__ void sm80_plain_add_shared(float (&gradient)[Config::kRowGroups][kColumns / 2],
                                                      const typename Sm80PlainShape<Config>::ScoreTile& tile,
                                                      const StreamedTile& streamed) {
  using ScoreTile = typename Sm80PlainShape<Config>::ScoreTile;
  const auto a = BlockReader<ScoreTile>::by_rows(tile, recomputed_thread() % 32);
#pragma unroll
  for (int row = 0; row < Config::kStreamed; row += kMmaDepth) {
    OperandA x[Config::kRowGroups][1];
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) x[r][0] = a.a(sm80_first_owned<Config>(r), row);
    sm80_plain_add<Config, kColumns, kMmaDepth>(gradient, x, streamed, row, sm80_part<Config>() * kColumns);
  }
}

// A warp's p or ds of kRows rows from `first` of the tile on.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_store(typename Sm80PlainShape<Config>::ScoreTile& tile,
                                                 const OperandA (&x)[Config::kRowGroups][kRows / kMmaDepth],
                                                 int first) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < kRows / kMmaDepth; ++i) {
      sm80_store_block(tile, sm80_first_owned<Config>(r), first + i * kMmaDepth, x[r][i]);
    }
  }
}

// kRoles 1: all that kStep streamed rows give, from `row` of the sequence on.
template <class Config>
__device__ __forceinline__ void sm80_plain_step(Sm80KeySums<Config>& dk, Sm80ValueSums<Config>& dv,
                                                Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                typename Sm80PlainShape<Config>::ScoreTile& ds_tile, int row) {
  constexpr int kRows = Sm80PlainShape<Config>::kRows;
  const auto& stage = smem.stage[sm80_buffer<Config>(row)];
  const int first = row % Config::kStreamed;
  Sm80Part<Config, kRows> s, dp;
  OperandA x[Config::kRowGroups][kRows / kMmaDepth];
  sm80_plain_s<Config, kRows>(s, smem, row);
  sm80_plain_dp<Config, kRows>(dp, smem, row);
  if (!smem.block.whole[sm80_key_warp<Config>()].has(row, kRows)) {
    sm80_plain_mask<Config, kRows>(s, smem.block, row);
    sm80_plain_hide<Config, kRows>(dp, s, -kInfinity);
  }
  sm80_plain_p<Config, kRows>(s, smem, args.base.scale, row);
  sm80_plain_pack<Config, kRows>(x, s);
  sm80_plain_add<Config, Sm80PlainShape<Config>::kColumnsV, kRows>(dv, x, stage.rows_v, first, 0);
  sm80_plain_ds<Config, kRows>(dp, s);
  sm80_plain_pack<Config, kRows>(x, dp);
  sm80_plain_store<Config, kRows>(ds_tile, x, first);
  sm80_plain_add<Config, Sm80PlainShape<Config>::kColumns, kRows>(dk, x, stage.rows, first, 0);
}

// kRoles 1: over all tiles of a head. ds of a tile has its place until the next but one; dq is made of it meanwhile.
template <class Config>
__device__ __forceinline__ void sm80_plain_all(Sm80KeySums<Config>& dk, Sm80ValueSums<Config>& dv,
                                               Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args) {
  constexpr int kRows = Sm80PlainShape<Config>::kRows;
#pragma unroll 1
  for (int tile = sm80_first_tile(smem.block); tile < smem.block.streamed.end; tile += Config::kStreamed) {
    sm80_plain_begin_tile(smem, args, tile);
    const int at = sm80_buffer<Config>(tile);
    if (tile > smem.block.streamed.begin) sm80_add_dq(smem.scores.tile[1 - at], smem, args, tile - Config::kStreamed);
#pragma unroll 1
    for (int row = tile; row < tile + Config::kStreamed; row += kRows) {
      if (smem.block.own[sm80_key_warp<Config>()].meets(row, kRows)) {
        sm80_plain_step(dk, dv, smem, args, smem.scores.tile[at], row);
      } else {
        sm80_plain_store<Config, kRows>(smem.scores.tile[at], {}, row % Config::kStreamed);
      }
    }
  }
}

// kRoles 2: what a warp has of p, for the warp of the other kind that has dp of the same scores.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_share_p(Sm80SharedP<Config, true>& to, const Sm80Part<Config, kRows>& p) {
  constexpr int kFours = kRows / 8;  // of a lane and group of 16 keys
  const int thread = recomputed_thread() % Sm80SharedP<Config, true>::kThreads;
#pragma unroll
  for (int i = 0; i < Config::kRowGroups * kFours; ++i) {
    const float* four = p[i / kFours] + i % kFours * 4;
    to.four[i][thread] = make_float4(four[0], four[1], four[2], four[3]);
  }
}

// kRoles 2: s, p and dv.
template <class Config>
__device__ __forceinline__ void sm80_plain_values(Sm80ValueSums<Config>& dv, Sm80BackwardStorage<Config>& smem,
                                                  const BackwardOptionArgs& args) {
  constexpr int kRows = Sm80PlainShape<Config>::kRows;
  constexpr int kColumnsV = Sm80PlainShape<Config>::kColumnsV;
#pragma unroll 1
  for (int tile = sm80_first_tile(smem.block); tile < smem.block.streamed.end; tile += Config::kStreamed) {
    sm80_plain_begin_tile(smem, args, tile);
    const auto& stage = smem.stage[sm80_buffer<Config>(tile)];
    const bool meets = smem.block.own[sm80_key_warp<Config>()].meets(tile, Config::kStreamed);
    OperandA p[Config::kRowGroups][kRows / kMmaDepth];
    if (meets) {
      const int first = sm80_part<Config>() * kRows;
      Sm80Part<Config, kRows> s;
      sm80_plain_s<Config, kRows>(s, smem, tile + first);
      if (!smem.block.whole[sm80_key_warp<Config>()].has(tile + first, kRows)) {
        sm80_plain_mask<Config, kRows>(s, smem.block, tile + first);
      }
      sm80_plain_p<Config, kRows>(s, smem, args.base.scale, tile + first);
      sm80_plain_share_p<Config, kRows>(smem.p, s);
      sm80_plain_pack<Config, kRows>(p, s);
      if constexpr (Config::kParts > 1) sm80_plain_store<Config, kRows>(smem.scores.tile[kSm80PTile], p, first);
    }
    if (tile > smem.block.streamed.begin)
      sm80_add_dq(smem.scores.tile[kSm80DsTile], smem, args, tile - Config::kStreamed);
    sm80_wait_all<Config>(kSm80ScoresBarrier);  // p of all warps is there, and ds before is no longer read
    if (!meets) continue;
    if constexpr (Config::kParts == 1) {
      sm80_plain_add<Config, kColumnsV, kRows>(dv, p, stage.rows_v, 0, 0);
    } else {
      sm80_plain_add_shared<Config, kColumnsV>(dv, smem.scores.tile[kSm80PTile], stage.rows_v);
    }
  }
}

// kRoles 2: ds in the place of dp - delta, of p from shared memory.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_shared_ds(Sm80Part<Config, kRows>& dp, const Sm80SharedP<Config, true>& p,
                                                     bool is_whole) {
  using Element = ElementOf<Config>;
  constexpr int kFours = kRows / 8;  // of a lane and group of 16 keys
  const int thread = recomputed_thread() % Sm80SharedP<Config, true>::kThreads;
#pragma unroll
  for (int i = 0; i < Config::kRowGroups * kFours; ++i) {
    if (i % 2 == 0) __syncwarp();  // no load moves up across it, where it would want registers of dk
    const float4 four = p.four[i][thread];
    const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& slope = dp[i / kFours][i % kFours * 4 + e];
      const float product = (kSm80ShiftsDs<Element> ? each[e] : each[e] * kSm80Unshift<Config>)*slope;
      slope = is_whole || each[e] != 0.0f ? product : 0.0f;
    }
  }
}

// kRoles 2: dp, ds and dk.
template <class Config>
__device__ __forceinline__ void sm80_plain_keys(Sm80KeySums<Config>& dk, Sm80BackwardStorage<Config>& smem,
                                                const BackwardOptionArgs& args) {
  constexpr int kRows = Sm80PlainShape<Config>::kRows;
  constexpr int kColumns = Sm80PlainShape<Config>::kColumns;
#pragma unroll 1
  for (int tile = sm80_first_tile(smem.block); tile < smem.block.streamed.end; tile += Config::kStreamed) {
    sm80_plain_begin_tile(smem, args, tile);
    const auto& stage = smem.stage[sm80_buffer<Config>(tile)];
    const int first = sm80_part<Config>() * kRows;
    if (tile > smem.block.streamed.begin)
      sm80_add_dq(smem.scores.tile[kSm80DsTile], smem, args, tile - Config::kStreamed);
    if (!smem.block.own[sm80_key_warp<Config>()].meets(tile, Config::kStreamed)) {
      sm80_wait_all<Config>(kSm80ScoresBarrier);  // ds before is no longer read
      sm80_plain_store<Config, kRows>(smem.scores.tile[kSm80DsTile], {}, first);
      continue;
    }
    Sm80Part<Config, kRows> dp;
    sm80_plain_dp<Config, kRows>(dp, smem, tile + first);
    sm80_wait_all<Config>(kSm80ScoresBarrier);  // p of all warps is there, and ds before is no longer read
    if (smem.block.whole[sm80_key_warp<Config>()].has(tile + first, kRows)) {
      sm80_plain_shared_ds<Config, kRows>(dp, smem.p, true);
    } else {
      sm80_plain_shared_ds<Config, kRows>(dp, smem.p, false);
    }
    OperandA ds[Config::kRowGroups][kRows / kMmaDepth];
    sm80_plain_pack<Config, kRows>(ds, dp);
    sm80_plain_store<Config, kRows>(smem.scores.tile[kSm80DsTile], ds, first);
    if constexpr (Config::kParts == 1) {
      sm80_plain_add<Config, kColumns, kRows>(dk, ds, stage.rows, 0, 0);
    } else {
      // ds of all warps that share the keys is there.
      barrier_wait<32 * Config::kParts>(kSm80FirstPairBarrier + sm80_key_warp<Config>());
      sm80_plain_add_shared<Config, kColumns>(dk, smem.scores.tile[kSm80DsTile], stage.rows);
    }
  }
}

// A warp's sums, rounded, to the block's tile.
template <class Config, int kColumns, class Tile>
__device__ __forceinline__ void sm80_plain_write(Tile& tile, const float (&sum)[Config::kRowGroups][kColumns / 2],
                                                 float factor) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; i += 2) {
      const int row = sm80_first_owned<Config>(r) + lane / 4 + i / 2 % 2 * kRowHalf;
      uint4& chunk = tile.chunk[Tile::index(row, sm80_part<Config>() * (kColumns / kChunkElements) + i / 4)];
      reinterpret_cast<uint32*>(&chunk)[lane % 4] = ElementOf<Config>::pack(sum[r][i] * factor, sum[r][i + 1] * factor);
    }
  }
}

template <class Config>
__device__ __forceinline__ void sm80_plain_write_keys(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                      const Sm80KeySums<Config>& dk) {
  constexpr float kFactor = kSm80ShiftsDs<ElementOf<Config>> ? kSm80Unshift<Config> : 1.0f;
  sm80_plain_write<Config, Sm80PlainShape<Config>::kColumns>(smem.owned, dk, args.base.gradient_scale * kFactor);
}

template <class Config>
__device__ __forceinline__ void sm80_plain_write_values(Sm80BackwardStorage<Config>& smem,
                                                        const Sm80ValueSums<Config>& dv) {
  sm80_plain_write<Config, Sm80PlainShape<Config>::kColumnsV>(smem.owned_v, dv, kSm80Unshift<Config>);
}

// A tile of the block's keys to dk or dv, by all threads.
template <class Config, int kHeadDim, class Tile>
__device__ __forceinline__ void sm80_plain_store_tile(const Tile& tile, void* tensor, const TensorStrides& stride,
                                                      const Sm80BackwardBlock<Config>& block) {
  constexpr int kPieces = kHeadDim / kChunkElements;
  const SequenceSpan& span = block.span;
  auto* to = static_cast<Bits16*>(tensor) + stride.offset(span.batch, block.work.head, span.k_begin + block.work.owned);
  const auto rows = static_cast<int>(min(span.seqlen_k - block.work.owned, int64{Tile::kRows}));
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += Config::kThreads) {
    *reinterpret_cast<uint4*>(to + i / kPieces * stride.row + i % kPieces * kChunkElements) =
        tile.chunk[Tile::index(i / kPieces, i % kPieces)];
  }
}

// The kernel of one role: `add` goes over a head's tiles, `write` leaves the warp's sums.
template <class Config, class Add, class Write>
__device__ __forceinline__ void sm80_plain_run(const BackwardOptionArgs& args, Sm80BackwardStorage<Config>& smem,
                                               const Add& add, const Write& write) {
  for (bool is_last = false; !is_last;) {
    sm80_wait_all<Config>(kSm80HeadBarrier);  // the block's work is there
    const int begin = sm80_first_tile(smem.block);
    if (begin < smem.block.streamed.end) sm80_send_streamed(smem, args, begin);
    cp_async_commit();
    add();
    sm80_wait_all<Config>(kSm80HeadBarrier);  // ds of the last tile is there
    const Sm80Range streamed = smem.block.streamed;
    if (streamed.begin < streamed.end) {
      const int last = (streamed.end - 1) / Config::kStreamed * Config::kStreamed;
      sm80_add_dq(smem.scores.tile[Config::kRoles == 1 ? sm80_buffer<Config>(last) : kSm80DsTile], smem, args, last);
    }
    const uint32 next = smem.block.head + 1;
    is_last = next * args.base.num_heads_k == (smem.block.work.head + 1) * args.base.num_heads_q;
    // Every warp has left the head: its tiles and the block's work may be overwritten.
    sm80_wait_all<Config>(kSm80HeadBarrier);
    if (threadIdx.x == 0 && !is_last) Sm80BackwardBlock<Config>::set_head(smem.block, args, next);
  }
  cp_async_wait<0>();                       // where no tile came, what the block owns may still be on its way,
  sm80_wait_all<Config>(kSm80HeadBarrier);  // into rows of others, too: now they may be written over
  write();
  sm80_wait_all<Config>(kSm80HeadBarrier);  // all sums are in the tiles
  sm80_plain_store_tile<Config, Config::kHeadDim>(smem.owned, args.base.dk, args.base.dk_stride, smem.block);
  sm80_plain_store_tile<Config, Config::kHeadDimV>(smem.owned_v, args.base.dv, args.base.dv_stride, smem.block);
}

// The gradients of one tile of kOwned keys. Grid: Sm80BackwardWork::mine().
template <class Config>
__device__ void sm80_backward_plain(const BackwardOptionArgs& args) {
  using Storage = Sm80BackwardStorage<Config>;
  static_assert(sizeof(Storage) == Config::kSmemBytes);
  static_assert(Config::kCopyBytes == kChunkBytes && !Config::kSumsBias && kFoldsScale<Config> &&
                    !Score<Config>::kMasksFromMemory && !Score<Config>::kDrops,
                "nothing but masks between q.k and p");
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Storage*>(smem_bytes);

  const auto work = Sm80BackwardWork::mine<Config>(args.base);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, work.sequence);
  if (work.owned >= span.seqlen_k) return;  // packed, shorter than the longest
  const uint32 head = work.head * (args.base.num_heads_q / args.base.num_heads_k);
  sm80_load_owned(smem, args, span, head, work.owned);
  Sm80BackwardBlock<Config>::make(smem.block, args, work, span, head);
  if constexpr (Config::kRoles == 1) {
    Sm80KeySums<Config> dk = {};
    Sm80ValueSums<Config> dv = {};
    sm80_plain_run(
        args, smem, [&] { sm80_plain_all(dk, dv, smem, args); },
        [&] { sm80_plain_write_keys(smem, args, dk), sm80_plain_write_values(smem, dv); });
  } else if (threadIdx.x < Config::kThreads / 2) {
    Sm80ValueSums<Config> dv = {};
    sm80_plain_run(
        args, smem, [&] { sm80_plain_values<Config>(dv, smem, args); }, [&] { sm80_plain_write_values(smem, dv); });
  } else {
    Sm80KeySums<Config> dk = {};
    sm80_plain_run(
        args, smem, [&] { sm80_plain_keys<Config>(dk, smem, args); }, [&] { sm80_plain_write_keys(smem, args, dk); });
  }
}

}  // namespace attend
