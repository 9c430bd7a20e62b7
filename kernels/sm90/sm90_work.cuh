// Which tiles of query rows there are, in which order, and which keys they see.
#pragma once

#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/key_range.cuh"
#include "sm90_forward_args.cuh"
#include "sm90_storage.cuh"

namespace attend {

// Tiles of kBlockN keys, [begin, end).
struct Sm90KeyTiles {
  int begin;
  int end;
};

template <class Config>
[[nodiscard]] __device__ __forceinline__ WindowMask sm90_mask(const OptionArgs& options, const Sm90Work& work) {
  WindowMask mask = {work.seqlen_q, work.seqlen_k, kOpenWindow, kOpenWindow};
  if constexpr (Config::kMask == MaskKind::kCausal) mask.window_right = 0;
  if constexpr (Config::kMask == MaskKind::kWindow) {
    mask.window_left = options.window_left;
    mask.window_right = options.window_right;
  }
  return mask;
}

// Those with a key that one of kRows rows from `row` on sees.
template <class Config, int kRows>
[[nodiscard]] __device__ __forceinline__ Sm90KeyTiles key_tiles_of_rows(const WindowMask& mask, int row) {
  if (row >= mask.seqlen_q) return {0, 0};
  const KeyRange keys = mask.rows(row, min(static_cast<int64>(row + kRows), mask.seqlen_q));
  if (keys.empty()) return {0, 0};
  return {Config::kMask == MaskKind::kWindow ? static_cast<int>(keys.begin) / Config::kBlockN : 0,
          (static_cast<int>(keys.end) + Config::kBlockN - 1) / Config::kBlockN};
}

// Those of which every row sees every key.
template <class Config, int kRows>
[[nodiscard]] __device__ __forceinline__ Sm90KeyTiles unmasked_tiles_of_rows(const WindowMask& mask, int row) {
  const int64 last_row = min(static_cast<int64>(row + kRows), mask.seqlen_q) - 1;
  return {(static_cast<int>(mask.row(last_row).begin) + Config::kBlockN - 1) / Config::kBlockN,
          static_cast<int>(mask.row(row).end) / Config::kBlockN};
}

// A block's tiles, one after the other. By one warp, all lanes alike.
template <class Config>
class Sm90TileWalk {
 public:
  __device__ __forceinline__ explicit Sm90TileWalk(const Sm90ForwardArgs& args) : args_(args), index_(blockIdx.x) {}

  // The tile under the walk; kNoWork at the end.
  [[nodiscard]] __device__ __forceinline__ Sm90Work tile() const {
    if (index_ >= args_.total_tiles) return {Sm90Work::kNoWork};
    constexpr bool kLongestFirst = Config::kMask == MaskKind::kCausal;
    uint32 head_of_all, tile;
    if constexpr (kLongestFirst) {
      const uint32 all_heads = args_.base.batch * args_.base.num_heads_q;
      const uint32 section = index_ / (args_.section_heads * args_.row_tiles);
      const uint32 rest = index_ - section * (args_.section_heads * args_.row_tiles);
      const uint32 heads = min(args_.section_heads, all_heads - section * args_.section_heads);
      head_of_all = section * args_.section_heads + rest % heads;
      tile = args_.row_tiles - 1 - rest / heads;
    } else {
      head_of_all = index_ / args_.row_tiles;
      tile = index_ - head_of_all * args_.row_tiles;
    }
    const int sequence = static_cast<int>(head_of_all / args_.base.num_heads_q);
    const int head = static_cast<int>(head_of_all) - sequence * static_cast<int>(args_.base.num_heads_q);
    const int row = static_cast<int>(tile) * Sm90Shape<Config>::kBlockM;
    return {sequence, head, row, 0, 0, static_cast<int>(args_.base.seqlen_q), static_cast<int>(args_.base.seqlen_k), 0};
  }

  // To the next tile: take() asks for it early, advance() goes there.
  __device__ __forceinline__ void take() {
    if constexpr (Config::kSchedule == Sm90Schedule::kDynamic) {
      if (threadIdx.x % 32 == 0) next_ = gridDim.x + atomicAdd(args_.next_tile, 1u);
    } else {
      next_ = index_ + gridDim.x;
    }
  }
  __device__ __forceinline__ void advance() {
    index_ = Config::kSchedule == Sm90Schedule::kDynamic ? __shfl_sync(0xffffffffu, next_, 0) : next_;
  }

 private:
  const Sm90ForwardArgs& args_;
  uint32 index_;
  uint32 next_ = 0;
};

}  // namespace attend
