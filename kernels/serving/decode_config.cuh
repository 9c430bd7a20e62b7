// What follows from a decode kernel's Config.
//
// Config: kElement (of q and o), kCacheElement, kHeadDim, kHeadDimV, kValuesAreKeys, kRows (of a team), kRowParts,
// kHalfRows (a tile of 8 rows has 4 at most),
// kSlots, kStackNodes, kAligned (rows of all tensors may be copied in chunks of 16 bytes), kRowFactors (each row of a
// cache of 8 bits has factors of its own), kHasBoxes (the copy engine brings keys and values), kByWarpgroup (two
// warpgroups multiply by wgmma, a tile of 64 rows), kColumnParts (2: each of them half of the columns of o), kManyUnits
// (work is numbered in 64 bits), kLeavesRoom (another kernel runs beside this one: decode_schedule.cuh), kThreads.
#pragma once

#include "../common/element.cuh"
#include "../common/recomputed.cuh"
#include "../common/warp_reduce.cuh"
#include "../isa/mbarrier.cuh"
#include "../isa/named_barrier.cuh"
#include "decode_shape.cuh"
#include "decode_slot.cuh"

namespace attend {

template <bool kHasPanels, int kRowBytes>
struct DecodeRowsFor {
  using Type = DecodeSlotRows<kRowBytes>;
};
template <int kRowBytes>
struct DecodeRowsFor<true, kRowBytes> {
  using Type = DecodeSlotPanels<kRowBytes>;
};
template <bool kHasPanels, int kRowBytes>
using DecodeRowsOf = typename DecodeRowsFor<kHasPanels, kRowBytes>::Type;

template <class Config>
struct DecodeSizes {
  static constexpr int kQBytes = element_info(Config::kElement).bytes;
  static constexpr int kCacheBytes = Config::kCacheElement == CacheElement::kSame ? kQBytes : 1;
  static constexpr DecodeTile kTile = {
      kQBytes,           kCacheBytes,          Config::kHeadDim,     Config::kHeadDimV, Config::kValuesAreKeys,
      Config::kHasBoxes, Config::kByWarpgroup, Config::kColumnParts, Config::kRows,     Config::kRowParts,
      Config::kHalfRows, Config::kSlots,       Config::kStackNodes};
  static constexpr DecodeSmem kSmem = decode_smem(kTile);
  static constexpr int kComputeThreads = decode_compute_threads(kTile);
  static constexpr int kStateThreads = decode_state_threads(kTile);
  static constexpr int kBusyThreads = decode_busy_threads(kTile);
  static constexpr bool kLeavesInTurns = decode_leaves_in_turns(kTile);
  static constexpr int kLeafShift = decode_leaf_shift(kTile);
  static_assert(!kLeavesInTurns || kLeafShift == 0);  // decode_order.cuh
  static constexpr int kSlotParts = decode_slot_parts(kTile), kFirstPanels = Config::kHeadDimV / 2 / kPanelColumns;
  static constexpr int kTeamThreads = kTeamWarps * kWarpThreads;
  static constexpr int kEights = Config::kRows / 8;
  static constexpr int kTileRows = Config::kRows * Config::kRowParts;
  static constexpr int kColumnTiles = decode_column_tiles(kTile);
  static constexpr int kOwned = decode_owned_tiles(kTile);
  static constexpr int kKRow = decode_slot_row_bytes(Config::kHeadDim, kCacheBytes, decode_has_panels(kTile));
  static constexpr int kVRow =
      Config::kValuesAreKeys ? kKRow : decode_slot_row_bytes(Config::kHeadDimV, kCacheBytes, decode_has_panels(kTile));
  using KRows = DecodeRowsOf<decode_has_panels(kTile), kKRow>;
  using VRows = DecodeRowsOf<decode_has_panels(kTile), kVRow>;
  static constexpr int kQRow = decode_q_row(kTile);
  static constexpr int kPRow = decode_p_row(kTile);
  static constexpr int kSlotBytes = decode_slot_bytes(kTile);
  static constexpr bool kLoadsValues = !Config::kValuesAreKeys;
  // The products of a step with its keys run beside the step before.
  static constexpr bool kAhead =
      decode_wants_to_work_ahead(kTile, Config::kLeavesRoom) && Config::kSlots >= kDecodeSlotsAhead;
  // Keys and values have factors: each row of the cache its own, or all rows of a sequence and head the same.
  static constexpr bool kHasFactors = Config::kCacheElement != CacheElement::kSame;
  static constexpr bool kRowFactors = kHasFactors && Config::kRowFactors;
  static_assert(decode_threads(kTile) == Config::kThreads);
  static constexpr int kRowShift = kTileRows == 8 ? 3 : kTileRows == 16 ? 4 : kTileRows == 32 ? 5 : 6;
  static_assert(Config::kRowParts <= 2 && 1 << kRowShift == kTileRows);
  static_assert(!Config::kHalfRows || kTileRows == 8);
  static_assert(!Config::kByWarpgroup ||
                ((Config::kHasBoxes || Config::kColumnParts > 1) && kQBytes == 2 && kCacheBytes == 2 &&
                 Config::kAligned && Config::kRows == 64 && Config::kRowParts == 1));
  static_assert(Config::kColumnParts == 1 ||
                (Config::kColumnParts == 2 && Config::kByWarpgroup && Config::kHeadDimV % (2 * kPanelColumns) == 0));
};

// What the tensor cores multiply beside a q of 16 bits: q's type, or f16 for elements of 8 bits, which they become by
// fewer instructions.
template <class Config>
constexpr ElementType kProductElement =
    Config::kElement == ElementType::kBF16&& Config::kCacheElement != CacheElement::kSame ? ElementType::kF16
                                                                                          : Config::kElement;
template <class Config>
using ProductElementOf = typename ElementTraits<kProductElement<Config>>::Type;
template <class Config>
constexpr bool kConvertsQueries = kProductElement<Config> != Config::kElement;

// Unsigned integers of the size of an element.
template <int kBytes>
struct StorageOfBytes;
template <>
struct StorageOfBytes<1> {
  using Type = unsigned char;
};
template <>
struct StorageOfBytes<2> {
  using Type = unsigned short;
};
template <>
struct StorageOfBytes<4> {
  using Type = uint32;
};
template <int kBytes>
using StorageOf = typename StorageOfBytes<kBytes>::Type;

// Where a computing warp stands: its team, and its number in it.
template <class Config>
struct DecodeRole {
  int lane, warp, part;

  [[nodiscard]] static __device__ __forceinline__ DecodeRole of_this_warp() {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    return {static_cast<int>(threadIdx.x) % kWarpThreads, warp % kTeamWarps,
            Config::kRowParts == 2 || Config::kByWarpgroup ? warp / kTeamWarps : 0};
  }
  // For code that rarely runs: what follows from it is not kept in registers.
  [[nodiscard]] __device__ __forceinline__ DecodeRole again() const {
    return {recomputed(lane), recomputed(warp), part};
  }
  [[nodiscard]] __device__ __forceinline__ int first_row() const {
    return Config::kRowParts == 2 ? part * Config::kRows : 0;
  }
  // The tile of 16 columns that is the warp's number `owned`; there may be none.
  [[nodiscard]] __device__ __forceinline__ int column_tile(int owned) const { return owned * kTeamWarps + warp; }
};

// Numbers of the block's barriers; the first one is of the first team.
enum DecodeBarrier {
  kTeamBarrier = 1,
  kComputeBarrier = 3,
  kListBarrier,
  kListReadBarrier,
  kBlockBarrier,
  kTurnBarrier  // and the next
};

// The team's warps wait for each other: all have come, and see what the others wrote to shared memory.
template <class Config>
__device__ __forceinline__ void team_barrier(const DecodeRole<Config>& role) {
  barrier_wait<DecodeSizes<Config>::kTeamThreads>(kTeamBarrier + role.part);
}

// Likewise all computing warps.
template <class Config>
__device__ __forceinline__ void compute_barrier() {
  barrier_wait<DecodeSizes<Config>::kComputeThreads>(kComputeBarrier);
}

// Likewise all warps of the block, which come to it from several places of the code.
template <class Config>
__device__ __forceinline__ void block_barrier() {
  barrier_wait_of_roles<DecodeSizes<Config>::kBusyThreads>(kBlockBarrier);
}

// Between the computing warps and the loading one that lists nodes: threads that come to the barriers.
template <class Config>
constexpr int kListThreads = DecodeSizes<Config>::kStateThreads + kWarpThreads;

// The thread's number among those that have a state between them.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int state_thread() {
  const int thread = static_cast<int>(threadIdx.x);
  return Config::kByWarpgroup ? thread % DecodeSizes<Config>::kStateThreads : thread;
}

// The key of a loading lane in a step to come.
struct DecodeAskedKey {
  int block;  // the row of a contiguous cache; of a paged one what the table says, whether or not there is such a page
  int row;    // in the block; -1: the sequence has no such key, or no row sees it
  int sequence_or_part;  // kLeavesInTurns: the part of the ring
  int head;              // of the keys; -1: there are no more steps
};
static_assert(sizeof(DecodeAskedKey) == kDecodeAskedBytes);

// The barriers of the ring's slots: one that its copies have landed, one that it has been read. kSlotParts of 2: of
// each part. kColumnParts of 2: first parts are the columns of the first warpgroup; the second one does not release
// them, and waits for those of its own steps only.
template <class Config>
struct DecodeRing {
  using Sizes = DecodeSizes<Config>;
  // kLeavesInTurns: each warpgroup has half of the slots, and its steps come through those. A slot has one reader so,
  // who knows by the parity of its barrier which step is there.
  static constexpr int kParts = Sizes::kLeavesInTurns ? 2 : 1;
  static constexpr int kSlots = Config::kSlots / kParts;  // of a part
  using Place = PipelineState<kSlots>;
  static_assert(Config::kSlots % kParts == 0);

  char* smem;  // of the block

  [[nodiscard]] __device__ __forceinline__ char* slot(int number) const {
    return smem + Sizes::kSmem.ring + number * Sizes::kSlotBytes;
  }
  // Which keys of the step exist: a bit each, a word of each loading warp.
  [[nodiscard]] __device__ __forceinline__ uint32* existing(int number) const {
    return reinterpret_cast<uint32*>(smem + Sizes::kSmem.existing) + number * kDecodeLoadWarps;
  }
  // Those of the step's keys and values, in the slot of the keys: kRowFactors.
  [[nodiscard]] __device__ __forceinline__ float2* factors(int number) const {
    return reinterpret_cast<float2*>(smem + Sizes::kSmem.factors) + number * kStepKeys;
  }
  // Steps to come, in turns: decode_asked_steps().
  [[nodiscard]] __device__ __forceinline__ DecodeAskedKey* asked(int number, int warp, int lane) const {
    return reinterpret_cast<DecodeAskedKey*>(smem + Sizes::kSmem.asked) +
           (number * kDecodeLoadWarps + warp) * kWarpThreads + lane;
  }
  [[nodiscard]] __device__ __forceinline__ Mbarrier& full(int number, int part = 0) const {
    return reinterpret_cast<Mbarrier*>(smem + Sizes::kSmem.barriers)[part * 2 * Config::kSlots + number];
  }
  [[nodiscard]] __device__ __forceinline__ Mbarrier& empty(int number, int part = 0) const {
    return full(Config::kSlots + number, part);
  }

  // By one warp, before a barrier of the block. Every loading thread arrives when its copies have landed, and its warp
  // for what it has stored itself.
  __device__ __forceinline__ void init(int number) const {
    static_assert(Config::kSlots <= kWarpThreads);
    if (number < Config::kSlots) {
#pragma unroll
      for (int part = 0; part < Sizes::kSlotParts; ++part) {
        const int readers = Sizes::kStateThreads / kWarpThreads / (part == 0 ? Config::kColumnParts : 1);
        full(number, part).init(kDecodeLoadWarps * kWarpThreads + arrivals_of_warps(kDecodeLoadWarps));
        empty(number, part).init(arrivals_of_warps(readers));
      }
    }
  }
};

}  // namespace attend
