// Constants and types that follow from a decode kernel's Config.
//
// Config: kElement (of q and o), kCacheElement, kHeadDim, kHeadDimV, kValuesAreKeys, kRows (of a team), kRowParts,
// kHalfRows (the tile of 8 rows has at most 4 in use), kSlots, kStackNodes, kAligned (rows of all tensors may be copied
// in 16-byte chunks), kRowFactors (each row of an 8-bit cache has its own factors), kHasBoxes (the copy engine copies
// keys and values), kByWarpgroup (two warpgroups multiply tiles of 64 rows by wgmma), kColumnParts (2: each warpgroup
// has half of the columns of o), kManyUnits (work is numbered in 64 bits), kLeavesRoom (another kernel runs at the same
// time: decode_schedule.cuh), kThreads.
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
  // Whether the products with a step's keys run during the previous step.
  static constexpr bool kAhead =
      decode_wants_to_work_ahead(kTile, Config::kLeavesRoom) && Config::kSlots >= kDecodeSlotsAhead;
  // Whether keys and values have factors. With kRowFactors each row of the cache has its own. Otherwise all rows of a
  // sequence and head share one.
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

// Element type of the tensor core products with a 16-bit q: q's type, or f16 for an 8-bit cache, because 8-bit elements
// convert to f16 with fewer instructions.
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

// The position of a computing warp: its team, and its number in the team.
template <class Config>
struct DecodeRole {
  int lane, warp, part;

  [[nodiscard]] static __device__ __forceinline__ DecodeRole of_this_warp() {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    return {static_cast<int>(threadIdx.x) % kWarpThreads, warp % kTeamWarps,
            Config::kRowParts == 2 || Config::kByWarpgroup ? warp / kTeamWarps : 0};
  }
  // Returns a copy for rarely executed code: values derived from it are not kept in registers.
  [[nodiscard]] __device__ __forceinline__ DecodeRole again() const {
    return {recomputed(lane), recomputed(warp), part};
  }
  [[nodiscard]] __device__ __forceinline__ int first_row() const {
    return Config::kRowParts == 2 ? part * Config::kRows : 0;
  }
  // Returns the number of the 16-column tile that is the warp's `owned`-th. It may be beyond the last tile.
  [[nodiscard]] __device__ __forceinline__ int column_tile(int owned) const { return owned * kTeamWarps + warp; }
};

// Numbers of the block's barriers; kTeamBarrier is the first team's.
enum DecodeBarrier {
  kTeamBarrier = 1,
  kComputeBarrier = 3,
  kListBarrier,
  kListReadBarrier,
  kBlockBarrier,
  kTurnBarrier  // uses this number and the next one
};

// Waits until all warps of the team have arrived. Each then sees the others' writes to shared memory.
template <class Config>
__device__ __forceinline__ void team_barrier(const DecodeRole<Config>& role) {
  barrier_wait<DecodeSizes<Config>::kTeamThreads>(kTeamBarrier + role.part);
}

// As team_barrier(), for all computing warps.
template <class Config>
__device__ __forceinline__ void compute_barrier() {
  barrier_wait<DecodeSizes<Config>::kComputeThreads>(kComputeBarrier);
}

// As team_barrier(), for all warps of the block, which reach the barrier from several places in the code.
template <class Config>
__device__ __forceinline__ void block_barrier() {
  barrier_wait_of_roles<DecodeSizes<Config>::kBusyThreads>(kBlockBarrier);
}

// Number of threads at the barriers between the computing warps and the loading warp that lists nodes.
template <class Config>
constexpr int kListThreads = DecodeSizes<Config>::kStateThreads + kWarpThreads;

// Returns the thread's number among the threads that share a state.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int state_thread() {
  const int thread = static_cast<int>(threadIdx.x);
  return Config::kByWarpgroup ? thread % DecodeSizes<Config>::kStateThreads : thread;
}

// The key of a loading lane in an upcoming step.
struct DecodeAskedKey {
  int block;  // row of a contiguous cache, or the page table's entry of a paged one, which may not be a valid page
  int row;    // row in the block; -1: the sequence has no such key, or no row sees it
  int sequence_or_part;  // kLeavesInTurns: the part of the ring
  int head;              // key head; -1: no more steps
};
static_assert(sizeof(DecodeAskedKey) == kDecodeAskedBytes);

// The ring's slots and their barriers. A slot has a `full` barrier (its copies have landed) and an `empty` one (it has
// been read). With kSlotParts of 2 each part has both. With kColumnParts of 2 the first part is the columns of the
// first warpgroup. The second warpgroup never releases it, and waits for it only in its own steps.
template <class Config>
struct DecodeRing {
  using Sizes = DecodeSizes<Config>;
  // kLeavesInTurns: each warpgroup has half of the slots for its steps. So a slot has one reader, and the parity of its
  // barrier identifies the step.
  static constexpr int kParts = Sizes::kLeavesInTurns ? 2 : 1;
  static constexpr int kSlots = Config::kSlots / kParts;  // slots of a part
  using Place = PipelineState<kSlots>;
  static_assert(Config::kSlots % kParts == 0);

  char* smem;  // the block's shared memory

  [[nodiscard]] __device__ __forceinline__ char* slot(int number) const {
    return smem + Sizes::kSmem.ring + number * Sizes::kSlotBytes;
  }
  // Returns the bits of the step's existing keys: one word for each loading warp.
  [[nodiscard]] __device__ __forceinline__ uint32* existing(int number) const {
    return reinterpret_cast<uint32*>(smem + Sizes::kSmem.existing) + number * kDecodeLoadWarps;
  }
  // Returns the factors of the step's keys and values, stored with the slot of the keys: kRowFactors.
  [[nodiscard]] __device__ __forceinline__ float2* factors(int number) const {
    return reinterpret_cast<float2*>(smem + Sizes::kSmem.factors) + number * kStepKeys;
  }
  // Returns an entry of the circular buffer of upcoming steps: decode_asked_steps().
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

  // Initialises a slot's barriers. One warp calls it, before a barrier of the block. Every loading thread arrives when
  // its copies have landed, and its warp when the lanes' stores are done.
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
