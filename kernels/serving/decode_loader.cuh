// Copies keys and values into the ring. The copies run ahead of the products by the number of slots, also across the
// borders of pieces (DecodePiece).
//
// A loading warp copies 32 keys of every step, one for each lane. It reads the page table some steps ahead by
// asynchronous copies, because an ordinary load would wait behind all copies in flight. A key is missing if it lies
// beyond the sequence's length, left of the padding, or in no page. Missing keys, and keys that no row sees, become
// zeros, because in a matrix product 0 * NaN would reach rows that do not see the key.
#pragma once

#include "../isa/grid_dependency.cuh"
#include "decode_context.cuh"
#include "decode_copy.cuh"
#include "decode_order.cuh"

namespace attend {

template <class Config>
class DecodeLoader {
 public:
  using Sizes = DecodeSizes<Config>;
  using Cursor = DecodeCursor<Config>;

  // `warp` is the number of the warp among the loading warps.
  __device__ __forceinline__ DecodeLoader(const DecodeContext<Config>& block, int warp, int lane)
      : args_(block.args), cursor_(block.cursor), ring_(block.ring), told_(block.told()), warp_(warp), lane_(lane) {}

  // Returns the number of steps to prefetch into L2, normally the number of steps that the ring holds. If no previous
  // decode launch is running, the number is small, because a longer prefetch would take more time than it saves. If
  // most blocks of the previous launch have ended, the number is 0, because that launch is about to end and this block
  // can soon load.
  [[nodiscard]] static __device__ __forceinline__ int steps_to_fetch(int ended_before) {
    constexpr int kFew = 1, kMost = ceil_div(Config::kSlots, kSlotsOfStep<Config>);
    if (ended_before == 0) return kFew;
    return ended_before < static_cast<int>(gridDim.x / 8 * 7) ? kMost : 0;
  }

  // Prefetches the block's first keys and values into the L2 cache, if boxes copy them. All computing warps call this
  // while the previous kernel may still write the arrays. So the function reads no data into registers or shared
  // memory. If the previous kernel changes the page table, this function may fetch the wrong pages, which costs only
  // time.
  static __device__ __forceinline__ void fetch(const DecodeContext<Config>& block, int warp, int lane) {
    if constexpr (Config::kHasBoxes) {
      constexpr int kParts = Sizes::kLoadsValues ? 2 : 1;  // two warps fetch keys, and two other warps fetch values
      const DecodeArgs& args = block.args;
      const int steps = steps_to_fetch(block.told().ended);
      const DecodePiece& piece = block.cursor.piece;
      const int part = warp / kDecodeLoadWarps, key_in_step = warp % kDecodeLoadWarps * kWarpThreads + lane;
      if (part >= kParts || (lane & (static_cast<int>(args.box_rows) - 1)) != 0) return;
      const int end = min(min(piece.end_step, piece.first_step + steps) * kStepKeys, piece.end_key);
#pragma unroll 1
      for (int key = piece.first_step * kStepKeys + key_in_step; key < end; key += kStepKeys) {
        const CachePlace at = place(args.cache, block.cursor.item.span.cache_row, key);
        if (!at.exists()) continue;
        const PanelPlace box = {0, static_cast<int>(at.row), piece.head, static_cast<int>(at.block)};
        if (part == 0) {
          DecodeCopy<Config, Config::kHeadDim, typename Sizes::KRows>::fetch(args.k_map, box);
        } else {
          DecodeCopy<Config, Config::kHeadDimV, typename Sizes::VRows>::fetch(args.v_map, box);
        }
      }
    }
  }

  // Loads all steps of all pieces, starting with the block's first piece. After the first step, the computing warps
  // report whether the early schedule is correct for this call. If it is incorrect, the function returns false, and the
  // copies of the first step are discarded.
  __device__ __forceinline__ bool run(bool) {
    const bool is_paged = args_.cache.is_paged != 0;
    const int ahead = is_paged ? kAhead : 1;
    is_done_ = cursor_.is_done;
    if (!is_done_) take_piece();
    wait_for_kernels_before();
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) ask(i);
    int place = 0;
    if (!kLoadsEarly<Config> && !is_certified(0)) return false;
    bool is_certain = !kLoadsEarly<Config>;
#pragma unroll 1
    while (true) {
      if (is_paged) cp_async_wait<kAhead - 1>();  // waits for the page table's entry of this step
      const DecodeAskedKey asked = *ring_.asked(place, warp_, lane_);
      if (asked.head == kNoStep) break;
      const CachePlace row = found(asked);
      if constexpr (Sizes::kLeavesInTurns) go_to_part(asked.sequence_or_part);
      load_keys(asked, row);
      if constexpr (Sizes::kLoadsValues) load_values(asked, row);
      if (!is_certain && !is_certified(kSlotsOfStep<Config>)) return false;
      is_certain = true;
      ask(place);
      if (++place == ahead) place = 0;
    }
    if (!is_certain && !is_certified(0)) return false;
    cp_async_commit();
    cp_async_wait<0>();  // waits for all copies, because the block's shared memory must not be released before they
                         // arrive
    return true;
  }

 private:
  static constexpr int kAhead = decode_asked_steps(Sizes::kTile);
  static constexpr int kNoStep = -1, kNoKey = -1;

  // The keys of a piece, [begin, end), and the sequence, cache row and head to which they belong.
  struct Keys {
    int begin, end;
    int sequence, cache_row, head;
  };

  // Waits until the computing warps have checked the schedule, and returns whether it is correct. `filled` is the
  // number of slots that have been filled.
  [[nodiscard]] __device__ __forceinline__ bool is_certified(int filled) {
    if (warp_ == 0 && lane_ == 0) told_.filled = filled;
    block_barrier<Config>();  // waits until all threads of the block can read the result and the number of filled slots
    if (told_.changed == 0) return true;
    cp_async_commit();
    cp_async_wait<0>();  // waits for the table entries in flight, which are discarded
    return false;
  }

  __device__ __forceinline__ void take_piece() {
    const DecodePiece& piece = cursor_.piece;
    order_.start(piece.first_step, piece.end_step);
    keys_ = {piece.first_key, piece.end_key, cursor_.item.span.index, cursor_.item.span.cache_row, piece.head};
    if constexpr (Config::kHasBoxes) policy_ = cursor_.item.span.tiles > 1 ? read_again_policy() : read_once_policy();
  }

  [[nodiscard]] __device__ __forceinline__ int slot() const {
    return part_ * DecodeRing<Config>::kSlots + place_.stage;
  }
  // Switches to the other part of the ring, if the step belongs there.
  __device__ __forceinline__ void go_to_part(int part) {
    if (part == part_) return;
    const typename DecodeRing<Config>::Place place = place_;
    place_ = other_place_;
    other_place_ = place;
    part_ = part;
  }

  // Starts to read the page table's entry for the lane's key of the next step. If the cursor's piece has no further
  // step, this is the first step of the next non-empty piece. Each call commits one group of asynchronous copies.
  __device__ __forceinline__ void ask(int place) {
    while (!is_done_ && order_.is_done()) {
      cursor_.advance(args_, lane_);
      is_done_ = cursor_.is_done;
      take_piece();
    }
    DecodeAskedKey& asked = *ring_.asked(place, warp_, lane_);
    const int key = order_.unit() * kStepKeys + warp_ * kWarpThreads + lane_;
    const bool has_key = !is_done_ && key >= keys_.begin && key < keys_.end;
    asked.sequence_or_part = Sizes::kLeavesInTurns ? order_.part() : keys_.sequence;
    order_.advance();
    asked.head = is_done_ ? kNoStep : keys_.head;
    asked.row = has_key ? key : kNoKey;
    if (args_.cache.is_paged == 0) {
      asked.block = keys_.cache_row;
    } else if (has_key) {
      const CachePlace in_table = split_by_blocks(args_.cache, key);
      asked.row = static_cast<int>(in_table.row);
      const int64 entry = keys_.cache_row * args_.cache.table_row_stride + in_table.block;
      cp_async_4(smem_address(&asked.block), args_.cache.pages + entry, true);
    }
    cp_async_commit();
  }
  // Returns the place of the key in the cache, or a place that does not exist if the key is missing.
  [[nodiscard]] __device__ __forceinline__ CachePlace found(const DecodeAskedKey& asked) const {
    if (asked.row == kNoKey) return {-1, 0};
    return {args_.cache.is_paged != 0 ? existing_page(args_.cache, asked.block) : asked.block, asked.row};
  }

  __device__ __forceinline__ void load_keys(const DecodeAskedKey& asked, const CachePlace& row) {
    const int number = slot();
    const uint32 existing = __ballot_sync(kAllLanes, row.exists());
    if constexpr (Sizes::kSlotParts == 1) {
      ring_.empty(number).wait(place_.parity ^ 1);  // waits until the slot has been read; the slot may then be
                                                    // overwritten
      copy<Config::kHeadDim, typename Sizes::KRows>(args_.k, args_.k_stride, args_.k_map, asked, row, existing);
      if (lane_ == 0) ring_.existing(number)[warp_] = existing;
    } else {
      load_in_parts(asked, row, existing);
    }
    if constexpr (Sizes::kRowFactors) {
      float2& factors = ring_.factors(number)[warp_ * kWarpThreads + lane_];
      copy_factor(factors.x, args_.cache.k_descale, asked, row);
      copy_factor(factors.y, args_.cache.v_descale, asked, row);
    }
    arrive<Sizes::kSlotParts - 1>();
    place_.advance();
  }
  // Copies the keys in column parts. Arrives at the barriers of all parts except the last one.
  __device__ __forceinline__ void load_in_parts(const DecodeAskedKey& asked, const CachePlace& row, uint32 existing) {
    constexpr int kPanels = Sizes::KRows::kPanels, kOfFirst = Sizes::kFirstPanels;
    using Copy = DecodeCopy<Config, Config::kHeadDim, typename Sizes::KRows>;
    const int number = slot();
    char* to = ring_.slot(number) + warp_ * kWarpThreads * Sizes::KRows::kPitch;
    ring_.empty(number, 0).wait(place_.parity ^ 1);  // waits until the first part has been read; this part may then be
                                                     // overwritten
    if constexpr (Config::kHasBoxes) {
      const Box box = box_of(asked, row, existing);
      Copy::template boxes<0, kOfFirst>(to, args_.k_map, ring_.full(number, 0), box.place, box.rows, box.begins,
                                        policy_, lane_);
      arrive<0>();
      ring_.empty(number, 1).wait(place_.parity ^ 1);  // waits until the second part has been read; this part may then
                                                       // be overwritten
      Copy::template boxes<kOfFirst, kPanels>(to, args_.k_map, ring_.full(number, 1), box.place, box.rows, box.begins,
                                              policy_, lane_);
    } else {
      ring_.empty(number, 1).wait(place_.parity ^ 1);  // waits until the second part has been read; this part may then
                                                       // be overwritten
      Copy::rows(to, static_cast<const char*>(args_.k), offset(asked, row, args_.k_stride), args_.k_stride.row, lane_);
      arrive<0>();
    }
    if (lane_ == 0) ring_.existing(number)[warp_] = existing;
  }
  __device__ __forceinline__ void load_values(const DecodeAskedKey& asked, const CachePlace& row) {
    const int number = slot();
    ring_.empty(number).wait(place_.parity ^ 1);  // waits until the slot has been read; the slot may then be
                                                  // overwritten
    copy<Config::kHeadDimV, typename Sizes::VRows>(args_.v, args_.v_stride, args_.v_map, asked, row,
                                                   __ballot_sync(kAllLanes, row.exists()));
    arrive<0>();
    place_.advance();
  }
  // A box, and whether this lane starts its copy.
  struct Box {
    PanelPlace place;
    int rows;
    bool begins;
  };
  [[nodiscard]] __device__ __forceinline__ Box box_of(const DecodeAskedKey& asked, const CachePlace& row,
                                                      uint32 existing) const {
    Box box = {{0, static_cast<int>(row.row), asked.head, static_cast<int>(row.block)},
               static_cast<int>(args_.box_rows),
               false};
    const int in_box = lane_ & (box.rows - 1);
    uint32 of_box = existing;
    if (existing != kAllLanes) {  // The place of the box follows from the place of any existing row
      of_box &= kAllLanes >> (kWarpThreads - box.rows) << (lane_ - in_box);
      const int other = max(__ffs(static_cast<int>(of_box)) - 1, 0);
      box.place.row = __shfl_sync(kAllLanes, box.place.row, other) - (other & (box.rows - 1));
      box.place.batch = __shfl_sync(kAllLanes, box.place.batch, other);
    }
    box.begins = in_box == 0 && of_box != 0;
    return box;
  }
  // Copies the warp's rows of a tensor to their place in the slot. The copy engine copies each box that has an existing
  // row. It also copies missing rows of the box, which DecodeLeaf::clear_missing() zeroes later.
  template <int kColumns, class Rows>
  __device__ __forceinline__ void copy(const void* tensor, const TensorStrides& stride, const TensorMapArg& map,
                                       const DecodeAskedKey& asked, const CachePlace& row, uint32 existing) {
    using Copy = DecodeCopy<Config, kColumns, Rows>;
    char* to = ring_.slot(slot()) + warp_ * kWarpThreads * Rows::kPitch;
    if constexpr (Config::kHasBoxes) {
      const Box box = box_of(asked, row, existing);
      Copy::boxes(to, map, ring_.full(slot()), box.place, box.rows, box.begins, policy_, lane_);
    } else {
      Copy::rows(to, static_cast<const char*>(tensor), offset(asked, row, stride), stride.row, lane_);
    }
  }
  // Returns the key's offset in elements, or -1 if the key does not exist.
  [[nodiscard]] static __device__ __forceinline__ int64 offset(const DecodeAskedKey& asked, const CachePlace& row,
                                                               const TensorStrides& stride) {
    if (!row.exists()) return -1;
    return row.block * stride.batch + row.row * stride.row + asked.head * stride.head;
  }
  // Copies the key's descale factor, or stores 0 for a missing key.
  static __device__ __forceinline__ void copy_factor(float& to, const DescaleArgs& descale, const DecodeAskedKey& asked,
                                                     const CachePlace& row) {
    if (descale.data == nullptr || !row.exists()) {
      to = row.exists() ? 1.0f : 0.0f;
    } else {
      cp_async_4(smem_address(&to), descale.data + factor_offset(descale, asked.sequence_or_part, asked.head, row),
                 true);
    }
  }

  // Arrives at the `full` barrier of the part kPart. The barrier completes when all copies into this part have arrived
  // and all lanes have stored.
  template <int kPart>
  __device__ __forceinline__ void arrive() {
    Mbarrier& full = ring_.full(slot(), kPart);
    cp_async_arrive(full);
    __syncwarp();  // waits until all lanes have stored, because one lane arrives for the warp
    arrive_as_warp(full);
  }

  const DecodeArgs& args_;
  Cursor& cursor_;
  DecodeRing<Config> ring_;
  DecodeTold& told_;
  typename DecodeRing<Config>::Place place_, other_place_;  // place_ lies in the current part of the ring, and
                                                            // other_place_ in the other part
  int part_ = 0;
  int warp_, lane_;
  uint64 policy_ = 0;  // L2 cache policy of the copies of boxes. It keeps the keys in L2 if several tiles of rows read
                       // them
  DecodeOrder<Sizes::kLeavesInTurns> order_;
  Keys keys_ = {};
  bool is_done_ = false;
};

}  // namespace attend
