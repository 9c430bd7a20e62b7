// Loads tiles for the sm90 backward pass, and defines the warp that issues the loads in the persistent form.
#pragma once

#include "../isa/bulk_copy.cuh"
#include "../tiles/tma_panel.cuh"
#include "sm90_backward_storage.cuh"

namespace attend {

// Row statistics (lse_log2 or delta) that are loaded together with a tile of query rows. `count` is the number of
// floats. It must be a compile-time constant after inlining, and it is 0 if no statistics are loaded.
struct BackwardStatistics {
  float* to = nullptr;
  const float* from = nullptr;
  int count = 0;
};

// Loads tiles of rows into free buffers. All lanes of one warp must call it, and the first lane issues the copies.
//
// TMA writes zeros for rows outside the tensor. But after the end of a packed sequence, memory holds the next sequence
// or other data. A NaN there would survive a product with zero. So this class clears the rows after the end of the
// sequence.
template <class Config>
class BackwardTileLoads {
 public:
  // `tail_full` is a barrier that only this warp uses. It covers tiles whose last rows must be cleared before the
  // tile's full barrier may complete.
  __device__ __forceinline__ explicit BackwardTileLoads(Mbarrier& tail_full) : tail_full_(tail_full) {}

  // Loads kRows rows from at.row on, together with their statistics. The first `rows_left` rows belong to the sequence.
  template <int kDepth, int kRows>
  __device__ __forceinline__ void load(Bits16* to, const TensorMapArg& map, Mbarrier& full, const PanelPlace& at,
                                       int rows_left, const BackwardStatistics& statistics = {}) {
    const bool is_tail = Config::kIsVarlen && rows_left < kRows;
    Mbarrier& landed = is_tail ? tail_full_ : full;
    if (is_first_lane()) {
      landed.arrive_expect_bytes(kRows * kDepth * sizeof(Bits16) + statistics.count * sizeof(float));
#pragma unroll
      for (int column = 0; column < kDepth; column += kPanelColumns) {
        tma_load_panel(smem_address(to + column * kRows), map, landed, {column, at.row, at.head, at.batch});
      }
      if (statistics.count > 0) bulk_load(statistics.to, statistics.from, statistics.count * sizeof(float), landed);
    }
    if (is_tail) clear_tail<kDepth, kRows>(to, rows_left, full);
  }

 private:
  // Clears the rows from `rows` on, then arrives at the full barrier of the buffer.
  template <int kDepth, int kRows>
  __device__ __forceinline__ void clear_tail(Bits16* tile, int rows, Mbarrier& full) {
    tail_full_.wait(tail_parity_);  // wait until the copy is complete, so that it does not overwrite the zeros
    tail_parity_ ^= 1;
    constexpr int kPieces = kSwizzleBytes / 16;  // 16-byte pieces in one row of a panel; the swizzle stays within the
                                                 // row
#pragma unroll
    for (int column = 0; column < kDepth; column += kPanelColumns) {
      auto* panel = reinterpret_cast<uint4*>(tile + column * kRows);
#pragma unroll 1
      for (int i = rows * kPieces + static_cast<int>(threadIdx.x % 32); i < kRows * kPieces; i += 32) panel[i] = {};
    }
    fence_smem_for_async();  // makes the zeros visible to the tensor cores
    __syncwarp();
    if (is_first_lane()) full.arrive();
  }

  [[nodiscard]] static __device__ __forceinline__ bool is_first_lane() {
    return threadIdx.x % 32 == 0;
  }

  Mbarrier& tail_full_;
  uint32 tail_parity_ = 0;
};

// Loads the four tensors that a key block needs: k, v, q and dout.
template <class Config, class Storage = Sm90BackwardStorage<Config>>
class BackwardLoads {
 public:
  using Shape = BackwardShape<Config>;
  using SeenTile = SeenRowTile<Shape::kWarpgroups>;

  __device__ __forceinline__ BackwardLoads(Storage& smem, const Sm90BackwardArgs& args, Mbarrier& tail_full)
      : smem_(smem), args_(args), loads_(tail_full) {}

  __device__ __forceinline__ void load_k(const Sm90BackwardItem& item) {
    load_keys<Shape::kDepth>(smem_.k, args_.k_map, smem_.k_full, item);
  }
  __device__ __forceinline__ void load_v(const Sm90BackwardItem& item) {
    load_keys<Shape::kDepthV>(smem_.v, args_.v_map, smem_.v_full, item);
  }
  // Starts to read the next query tile's entry in the lists of a block mask. `place` is the index in these lists. The
  // caller does this right after issuing the loads of the previous tile, so the entry arrives before the buffers are
  // free. Does nothing without a block mask.
  __device__ __forceinline__ void look_up(const Sm90BackwardItem& item, int head, int place) {
    if constexpr (has_block_mask<Config>()) {
      const int group = static_cast<int>(args_.base.num_heads_q / args_.base.num_heads_k);
      const int lane = min(static_cast<int>(threadIdx.x % 32), SeenTile::kWords - 1);
      entry_ = backward_row_lists<Config>(args_).word(place, head - item.head_k * group, lane);
    }
  }
  __device__ __forceinline__ void load_q(const Sm90BackwardItem& item, int head, int tile, uint32 stage) {
    write_seen(stage);
    load_rows<Shape::kDepth>(smem_.q[stage], smem_.lse_log2[stage], args_.q_map, args_.lse_log2, smem_.q_full[stage],
                             item, head, tile);
  }
  __device__ __forceinline__ void load_dout(const Sm90BackwardItem& item, int head, int tile, uint32 stage) {
    load_rows<Shape::kDepthV>(smem_.dout[stage], smem_.delta[stage], args_.dout_map, args_.delta,
                              smem_.dout_full[stage], item, head, tile);
  }

 private:
  template <int kDepth>
  __device__ __forceinline__ void load_keys(Bits16* to, const TensorMapArg& map, Mbarrier& full,
                                            const Sm90BackwardItem& item) {
    loads_.template load<kDepth, Config::kBlockN>(
        to, map, full, PanelPlace::of(item.span().keys().place(item.key), item.head_k), item.seqlen_k - item.key);
  }
  template <int kDepth>
  __device__ __forceinline__ void load_rows(Bits16* to, float* to_stats, const TensorMapArg& map, const float* stats,
                                            Mbarrier& full, const Sm90BackwardItem& item, int head, int tile) {
    const int number = has_block_mask<Config>() ? __shfl_sync(0xffffffffu, entry_, 0) : tile;
    const int row = number * Config::kBlockM;
    loads_.template load<kDepth, Config::kBlockM>(
        to, map, full, PanelPlace::of(item.span().query_place(row), head), item.seqlen_q - row,
        {to_stats, stats + backward_stats_row(args_, item, head, number), Config::kBlockM});
  }
  // Writes the tile's entry of the block mask's lists to shared memory before q_full completes. The lane that arrives
  // at q_full writes the entry, so it does not wait for other lanes.
  __device__ __forceinline__ void write_seen(uint32 stage) {
    if constexpr (has_block_mask<Config>()) {
#pragma unroll
      for (int i = 0; i < SeenTile::kWords; ++i) {
        const int word = __shfl_sync(kAllLanes, entry_, i);
        if (threadIdx.x % 32 == 0) smem_.seen.of_stage[stage].words[i] = word;
      }
    }
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  BackwardTileLoads<Config> loads_;
  int entry_ = 0;  // one word of the next tile's entry in the lists of a block mask. Each lane holds another word
};

// The loading warp of the persistent form. It iterates over the list of work items and waits for free buffers. While
// the last tiles of an item are computed, it loads v, q and dout of the next item. It loads k of the next item after
// the last dq product has read the previous k.
template <class Config>
class BackwardLoader {
 public:
  __device__ __forceinline__ BackwardLoader(Sm90BackwardStorage<Config>& smem, const Sm90BackwardArgs& args)
      : smem_(smem), args_(args), loads_(smem, args, smem.tail_full), list_(args) {}

  __device__ __forceinline__ void run() {
    prepare(0);
#pragma unroll 1
    for (uint32 number = 0;; ++number) {
      const bool announces = threadIdx.x % 32 == 0;
      // Other warps may read the item that prepare() wrote.
      if (announces) smem_.item_full[number % kBackwardItemRing].arrive();
      const Sm90BackwardItem& item = smem_.items[number % kBackwardItemRing];
      if (item.is_end()) break;
      if (item.begin == item.end) {  // nothing is loaded, but the barriers' phases must advance once per item
        smem_.k_empty.wait(number & 1 ^ 1);
        smem_.v_empty.wait(number & 1 ^ 1);
        if (announces) smem_.k_full.arrive();
        if (announces) smem_.v_full.arrive();
      } else {
        load_item(item, number);
      }
      if (!kPreparesEarly || item.begin == item.end) prepare(number + 1);
    }
  }

 private:
  // Whether the next item is prepared while the first buffers of the current item are busy. With full masks this is 1
  // to 2 % faster. If blocks take items from a shared list, an early request is 2 to 3 % slower (measured with causal
  // masks).
  static constexpr bool kPreparesEarly = Sm90BackwardList<Config>::kIsFixed;

  // Writes the next work item to its slot in the ring. run() then arrives at the slot's full barrier.
  __device__ __forceinline__ void prepare(uint32 number) {
    const uint32 slot = number % kBackwardItemRing;
    // Wait until all readers have released the previous item of this slot. Afterwards the slot may be overwritten.
    smem_.item_empty[slot].wait(number / kBackwardItemRing & 1 ^ 1);
    if (threadIdx.x % 32 == 0 && !list_.next(smem_.items[slot])) smem_.items[slot].key = -1;
    __syncwarp();  // the item is written, so the other lanes may read it
  }

  __device__ __forceinline__ void load_item(const Sm90BackwardItem& item, uint32 number) {
    BackwardSegment at = BackwardSegment::at(item, item.begin);
    loads_.look_up(item, at.head, at.tile);
#pragma unroll 1
    for (int step = item.begin; step < item.end; ++tiles_) {
      const uint32 stage = tiles_ % Config::kStages;
      const uint32 parity = tiles_ / Config::kStages & 1 ^ 1;
      const bool is_first = step == item.begin;
      const bool is_second = step == item.begin + 1;
      const bool is_only = item.end - item.begin == 1;
      // The loads follow the order in which buffers become free. v is free after the previous item's last dp, and k
      // after its last dq.
      if (is_first && number == 0) load_k(item, number);
      smem_.q_empty[stage].wait(parity);  // wait until dk of the previous tile has read the buffer
      loads_.load_q(item, at.head, at.tile, stage);
      if (is_first && number == 0) load_v(item, number);
      if (is_second && number > 0) load_k(item, number);
      smem_.dout_empty[stage].wait(parity);  // wait until dv of the previous tile has read the buffer
      loads_.load_dout(item, at.head, at.tile, stage);
      if (is_first && number > 0) load_v(item, number);
      if (is_only && number > 0) load_k(item, number);
      if (kPreparesEarly && (is_second || is_only)) prepare(number + 1);
      ++step;
      if (step == item.end) continue;
      if (++at.tile == at.tile_end) at = BackwardSegment::at(item, step);
      loads_.look_up(item, at.head, at.tile);
    }
  }
  __device__ __forceinline__ void load_k(const Sm90BackwardItem& item, uint32 number) {
    smem_.k_empty.wait(number & 1 ^ 1);  // wait until dq of the previous item has read k
    loads_.load_k(item);
  }
  __device__ __forceinline__ void load_v(const Sm90BackwardItem& item, uint32 number) {
    smem_.v_empty.wait(number & 1 ^ 1);  // wait until dp of the previous item has read v
    loads_.load_v(item);
  }

  Sm90BackwardStorage<Config>& smem_;
  const Sm90BackwardArgs& args_;
  BackwardLoads<Config> loads_;
  Sm90BackwardList<Config> list_;  // only the first lane accesses it
  uint32 tiles_ = 0;               // number of tiles loaded so far; it determines the buffer and the parity of the next
                                   // tile
};

}  // namespace attend
