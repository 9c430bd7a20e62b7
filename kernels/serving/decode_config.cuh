// Constants and types that are derived from a decode kernel's Config.
//
// Config has these members:
// - kHeadDim, kHeadDimV, kValuesAreKeys, kSlots and kStackNodes have the meaning that they have in DecodeTile.
// - kThreads is the number of threads of a block.
// - kElement is the element type of q and o.
// - kCacheElement is the element type of the cache.
// - kRows is the number of query rows of a team.
// - kRowParts is the number of teams with different rows.
// - kHalfRows is set if the tile has 8 rows and at most 4 of them are in use.
// - kAligned is set if rows of all tensors may be copied in 16-byte chunks.
// - kRowFactors is set if each row of an 8-bit cache has separate descale factors.
// - kHasBoxes is set if the copy engine (TMA) copies keys and values.
// - kByWarpgroup is set if two warpgroups multiply tiles of 64 rows by wgmma.
// - kColumnParts is 2 if each warpgroup has half of the columns of o. Otherwise it is 1.
// - kManyUnits is set if units of work are numbered in 64 bits.
// - kLeavesRoom is set if another kernel runs at the same time (decode_schedule.cuh).
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
  // Whether the block multiplies q by a step's keys during the previous step.
  static constexpr bool kAhead =
      decode_wants_to_work_ahead(kTile, Config::kLeavesRoom) && Config::kSlots >= kDecodeSlotsAhead;
  // Whether keys and values have descale factors. If kRowFactors is set, each row of the cache has separate factors.
  // Otherwise all rows of a sequence and head have the same factors.
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

// Element type of the tensor core products if q has 16 bits. With an 8-bit cache this is f16, because 8-bit elements
// are converted to f16 with fewer instructions than to bf16. Otherwise it is the type of q.
template <class Config>
constexpr ElementType kProductElement =
    Config::kElement == ElementType::kBF16&& Config::kCacheElement != CacheElement::kSame ? ElementType::kF16
                                                                                          : Config::kElement;
template <class Config>
using ProductElementOf = typename ElementTraits<kProductElement<Config>>::Type;
template <class Config>
constexpr bool kConvertsQueries = kProductElement<Config> != Config::kElement;

// Unsigned integer type of the size of an element.
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

// Position of a computing warp: its lane, its number in the team, and the number of its team (part).
template <class Config>
struct DecodeRole {
  int lane, warp, part;

  [[nodiscard]] static __device__ __forceinline__ DecodeRole of_this_warp() {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    return {static_cast<int>(threadIdx.x) % kWarpThreads, warp % kTeamWarps,
            Config::kRowParts == 2 || Config::kByWarpgroup ? warp / kTeamWarps : 0};
  }
  // Returns a copy for rarely executed code. The compiler does not keep values derived from the copy in registers.
  [[nodiscard]] __device__ __forceinline__ DecodeRole again() const {
    return {recomputed(lane), recomputed(warp), part};
  }
  [[nodiscard]] __device__ __forceinline__ int first_row() const {
    return Config::kRowParts == 2 ? part * Config::kRows : 0;
  }
  // Returns the number of the warp's `owned`-th 16-column tile. The tile may lie beyond the last column.
  [[nodiscard]] __device__ __forceinline__ int column_tile(int owned) const { return owned * kTeamWarps + warp; }
};

// Numbers of the block's named barriers. kTeamBarrier belongs to the first team, and the next number to the second.
enum DecodeBarrier {
  kTeamBarrier = 1,
  kComputeBarrier = 3,
  kListBarrier,
  kListReadBarrier,
  kBlockBarrier,
  kTurnBarrier  // uses this number and the next one
};

// Waits until all warps of the team have arrived. Each warp then sees the writes of the others to shared memory.
template <class Config>
__device__ __forceinline__ void team_barrier(const DecodeRole<Config>& role) {
  barrier_wait<DecodeSizes<Config>::kTeamThreads>(kTeamBarrier + role.part);
}

// Waits until all computing warps have arrived. Each warp then sees the writes of the others to shared memory.
template <class Config>
__device__ __forceinline__ void compute_barrier() {
  barrier_wait<DecodeSizes<Config>::kComputeThreads>(kComputeBarrier);
}

// Waits until all warps of the block have arrived. Each warp then sees the writes of the others to shared memory. The
// warps call it from several places in the code.
template <class Config>
__device__ __forceinline__ void block_barrier() {
  barrier_wait_of_roles<DecodeSizes<Config>::kBusyThreads>(kBlockBarrier);
}

// Number of threads at kListBarrier and kListReadBarrier, where the computing warps and the loading warp that lists
// nodes meet.
template <class Config>
constexpr int kListThreads = DecodeSizes<Config>::kStateThreads + kWarpThreads;

// Returns the thread's number among the threads that hold one state together.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int state_thread() {
  const int thread = static_cast<int>(threadIdx.x);
  return Config::kByWarpgroup ? thread % DecodeSizes<Config>::kStateThreads : thread;
}

// The key that a loading lane copies in an upcoming step.
struct DecodeAskedKey {
  int block;  // in a contiguous cache, the cache row. In a paged cache, the page table's entry, which can be an invalid
              // page
  int row;    // row in the block. -1 if the sequence has no such key, or if no query row sees it
  int sequence_or_part;  // the part of the ring if kLeavesInTurns is set, otherwise the sequence
  int head;              // head of the cache. -1 if there are no more steps
};
static_assert(sizeof(DecodeAskedKey) == kDecodeAskedBytes);

// The slots of the ring and their barriers. A slot has a `full` barrier, which completes when its copies have arrived,
// and an `empty` barrier, which completes when the slot has been read. If kSlotParts is 2, each part of a slot has
// these two barriers. If kColumnParts is 2, the first part holds the columns of the first warpgroup. The second
// warpgroup never releases the first part, and waits for it only in the steps whose scores it computes.
template <class Config>
struct DecodeRing {
  using Sizes = DecodeSizes<Config>;
  // Number of parts of the ring. If kLeavesInTurns is set, each warpgroup uses half of the slots for its steps. A slot
  // then has one reader, and the parity of its barrier identifies the step.
  static constexpr int kParts = Sizes::kLeavesInTurns ? 2 : 1;
  static constexpr int kSlots = Config::kSlots / kParts;  // number of slots in a part of the ring
  using Place = PipelineState<kSlots>;
  static_assert(Config::kSlots % kParts == 0);

  char* smem;  // the block's shared memory

  [[nodiscard]] __device__ __forceinline__ char* slot(int number) const {
    return smem + Sizes::kSmem.ring + number * Sizes::kSlotBytes;
  }
  // Returns the bits of the step's existing keys. There is one word for each loading warp.
  [[nodiscard]] __device__ __forceinline__ uint32* existing(int number) const {
    return reinterpret_cast<uint32*>(smem + Sizes::kSmem.existing) + number * kDecodeLoadWarps;
  }
  // Returns the descale factors of the step's keys (x) and values (y). The factors are stored with the slot of the
  // keys. Used if kRowFactors is set.
  [[nodiscard]] __device__ __forceinline__ float2* factors(int number) const {
    return reinterpret_cast<float2*>(smem + Sizes::kSmem.factors) + number * kStepKeys;
  }
  // Returns an entry of the circular buffer of upcoming steps, whose length is decode_asked_steps().
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

  // Initialises a slot's barriers. One warp calls it, before a barrier of the block. Every loading thread arrives at a
  // `full` barrier when its copies have arrived. Its warp also arrives when the stores of its lanes are done.
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
