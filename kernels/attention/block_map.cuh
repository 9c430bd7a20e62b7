// A caller's block mask as a map. For each tile of 64 rows and 64 keys, the map states whether none, all or some of the
// scores are visible. If only some are visible, the map also states which ones. The map suits kernels with tiles of any
// size. sm90 kernels use lists instead (block_mask.cuh).
//
//   const auto map = BlockMap<Config>::of(args.options.block_map, sequence, head);
//   const auto next = [&](int64 from) { return map.template next_keys<kBlockM, kBlockN>(row, from, end); };
//   for (int64 key = next(0); key < end; key = next(key + kBlockN)) {
//     ...                                             // scores of kBlockM rows from `row` and kBlockN keys from `key`
//     const uint64 seen = map.keys_of_row(row, key);  // a bit for each key from `key` to the last of its 64
//   }
//
// If there is no block mask, or if a kernel reads no map (it has no Config::kHasBlockMap), every score is visible and
// nothing is loaded.
#pragma once

#include "../common/args.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"

namespace attend {

template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_block_map() {
  if constexpr (requires { Config::kHasBlockMap; }) return Config::kHasBlockMap;
  return false;
}

constexpr int kMapTile = 64;  // number of rows, and of keys, in a tile of the map

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// The map of one query head of one sequence.
template <class Config, bool kIsOn = has_block_map<Config>()>
struct BlockMap {
  const BlockMapArgs* map;  // points to a kernel parameter, which is read from constant memory when needed and occupies
                            // no registers
  int64 first;              // index of the head's first tile

  [[nodiscard]] static __device__ __forceinline__ BlockMap of(const BlockMapArgs& map, uint32 sequence, uint32 head) {
    return {&map, sequence * map.sequence_stride + head * map.head_stride};
  }

  // Returns the pattern of the tile that contains the row and the key. This is the pattern's number, kAllSeen or
  // kNoneSeen. Returns kNoneSeen if the row or key lies beyond the lengths.
  [[nodiscard]] __device__ __forceinline__ int pattern_at(int64 row, int64 key) const {
    const auto tile_row = static_cast<int>(row / kMapTile), column = static_cast<int>(key / kMapTile);
    if (tile_row >= map->tile_rows || column >= map->tile_columns) return kNoneSeen;
    return __ldg(map->tiles + first + int64{tile_row} * map->tile_columns + column);
  }

  // Returns a word whose bit n states whether the row sees key `key` + n, up to the last key of the tile.
  [[nodiscard]] __device__ __forceinline__ uint64 keys_of_row(int64 row, int64 key) const {
    return bits(pattern_at(row, key), static_cast<int>(row % kMapTile)) >> key % kMapTile;
  }
  // Returns a word whose bit n states whether row `row` + n sees the key, up to the last row of the tile.
  [[nodiscard]] __device__ __forceinline__ uint64 rows_of_key(int64 key, int64 row) const {
    return bits(pattern_at(row, key), kMapTile + static_cast<int>(key % kMapTile)) >> row % kMapTile;
  }
  [[nodiscard]] __device__ __forceinline__ bool sees(int64 row, int64 key) const {
    return (keys_of_row(row, key) & 1) != 0;
  }

  // Returns whether any map tile that overlaps these kRows rows and kKeys keys has a visible score.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ bool sees_any(int64 row, int64 key) const {
    bool any = false;
    visit<kRows, kKeys>(row, key, [&](int pattern) { any |= pattern != kNoneSeen; });
    return any;
  }

  // Returns whether all scores of these kRows rows and kKeys keys are visible. All of the rows and keys must exist.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ bool sees_all(int64 row, int64 key) const {
    bool all = true;
    visit<kRows, kKeys>(row, key, [&](int pattern) { all &= pattern == kAllSeen; });
    return all;
  }

  // Returns the first tile of kKeys keys in which one of the kRows rows may see a key. The search visits `key`, `key` +
  // kKeys and so on. Returns `end` or more if there is no such tile. All lanes of the warp must call it. Each lane
  // checks one tile, and all lanes get the same result.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 next_keys(int64 row, int64 key, int64 end) const {
    return next<kKeys>(key, end, [&](int64 mine) { return sees_any<kRows, kKeys>(row, mine); });
  }
  // Returns the last such tile. The search visits `key`, `key` - kKeys and so on, down to `begin`. Returns less than
  // `begin` if there is no such tile.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 last_keys(int64 row, int64 key, int64 begin) const {
    for (; key >= begin; key -= kWarpThreads * kKeys) {
      const int64 mine = key - static_cast<int>(threadIdx.x % kWarpThreads) * kKeys;
      const uint32 seen = __ballot_sync(kAllLanes, mine >= begin && sees_any<kRows, kKeys>(row, mine));
      if (seen != 0) return key - (__ffs(static_cast<int>(seen)) - 1) * kKeys;
    }
    return key;
  }
  // Returns the first tile of kRows rows in which a row may see one of the kKeys keys, in the same way as next_keys().
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 next_rows(int64 row, int64 key, int64 end) const {
    return next<kRows>(row, end, [&](int64 mine) { return sees_any<kRows, kKeys>(mine, key); });
  }

 private:
  [[nodiscard]] __device__ __forceinline__ uint64 bits(int pattern, int word) const {
    if (pattern < 0) return pattern == kAllSeen ? ~uint64{0} : 0;
    return __ldg(map->patterns + int64{pattern} * kMapPatternWords + word);
  }

  // Returns the largest number of map tiles that a run of `count` rows or keys overlaps. The run begins at a multiple
  // of `count`.
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr int tiles_met(int count) {
    if (kMapTile % count == 0) return 1;
    return count % kMapTile == 0 ? count / kMapTile : count / kMapTile + 2;
  }

  template <int kRows, int kKeys>
  __device__ __forceinline__ void visit(int64 row, int64 key, const auto& what) const {
#pragma unroll
    for (int r = 0; r < tiles_met(kRows); ++r) {
#pragma unroll
      for (int k = 0; k < tiles_met(kKeys); ++k) {
        const int64 at_row = row / kMapTile * kMapTile + r * kMapTile;
        const int64 at_key = key / kMapTile * kMapTile + k * kMapTile;
        if (at_row < row + kRows && at_key < key + kKeys) what(pattern_at(at_row, at_key));
      }
    }
  }

  template <int kStep>
  [[nodiscard]] static __device__ __forceinline__ int64 next(int64 from, int64 end, const auto& is_seen) {
    for (; from < end; from += kWarpThreads * kStep) {
      const int64 mine = from + static_cast<int>(threadIdx.x % kWarpThreads) * kStep;
      const uint32 seen = __ballot_sync(kAllLanes, mine < end && is_seen(mine));
      if (seen != 0) return from + (__ffs(static_cast<int>(seen)) - 1) * kStep;
    }
    return from;
  }
};

template <class Config>
struct BlockMap<Config, false> {
  [[nodiscard]] static __device__ __forceinline__ BlockMap of(const BlockMapArgs& /*map*/, uint32 /*sequence*/,
                                                              uint32 /*head*/) {
    return {};
  }
  [[nodiscard]] __device__ __forceinline__ bool sees(int64 /*row*/, int64 /*key*/) const { return true; }
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ bool sees_any(int64 /*row*/, int64 /*key*/) const {
    return true;
  }
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ bool sees_all(int64 /*row*/, int64 /*key*/) const {
    return true;
  }
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 next_keys(int64 /*row*/, int64 key, int64 /*end*/) const {
    return key;
  }
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 last_keys(int64 /*row*/, int64 key, int64 /*begin*/) const {
    return key;
  }
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 next_rows(int64 row, int64 /*key*/, int64 /*end*/) const {
    return row;
  }
};

#endif

}  // namespace attend
