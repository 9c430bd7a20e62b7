// A caller's block mask as a map: of each 64 rows and 64 keys, whether none, all or some of the scores are seen, and
// which. For kernels whose tiles have any size; those of sm90 walk over lists instead (block_mask.cuh).
//
//   const auto map = BlockMap<Config>::of(args.options.block_map, sequence, head);
//   const auto next = [&](int64 from) { return map.template next_keys<kBlockM, kBlockN>(row, from, end); };
//   for (int64 key = next(0); key < end; key = next(key + kBlockN)) {
//     ...                                             // scores of kBlockM rows from `row` and kBlockN keys from `key`
//     const uint64 seen = map.keys_of_row(row, key);  // a bit for each key from `key` to the last of its 64
//   }
//
// Without a block mask, or in kernels that read no map (no Config::kHasBlockMap), all is seen and nothing is loaded.
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

constexpr int kMapTile = 64;  // rows, and keys

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Of one query head of one sequence.
template <class Config, bool kIsOn = has_block_map<Config>()>
struct BlockMap {
  const BlockMapArgs* map;  // a parameter of the kernel: read where it is wanted, it takes no registers
  int64 first;              // of the head's tiles

  [[nodiscard]] static __device__ __forceinline__ BlockMap of(const BlockMapArgs& map, uint32 sequence, uint32 head) {
    return {&map, sequence * map.sequence_stride + head * map.head_stride};
  }

  // Of the tile that has the row and the key: a pattern's number, kAllSeen or kNoneSeen. Beyond the lengths: kNoneSeen.
  [[nodiscard]] __device__ __forceinline__ int pattern_at(int64 row, int64 key) const {
    const auto tile_row = static_cast<int>(row / kMapTile), column = static_cast<int>(key / kMapTile);
    if (tile_row >= map->tile_rows || column >= map->tile_columns) return kNoneSeen;
    return __ldg(map->tiles + first + int64{tile_row} * map->tile_columns + column);
  }

  // Bit n: does the row see key + n? Up to the last of the tile's keys.
  [[nodiscard]] __device__ __forceinline__ uint64 keys_of_row(int64 row, int64 key) const {
    return bits(pattern_at(row, key), static_cast<int>(row % kMapTile)) >> key % kMapTile;
  }
  // Bit n: does row + n see the key? Up to the last of the tile's rows.
  [[nodiscard]] __device__ __forceinline__ uint64 rows_of_key(int64 key, int64 row) const {
    return bits(pattern_at(row, key), kMapTile + static_cast<int>(key % kMapTile)) >> row % kMapTile;
  }
  [[nodiscard]] __device__ __forceinline__ bool sees(int64 row, int64 key) const {
    return (keys_of_row(row, key) & 1) != 0;
  }

  // Are there tiles of the map with a score that is seen among kRows rows and kKeys keys?
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ bool sees_any(int64 row, int64 key) const {
    bool any = false;
    visit<kRows, kKeys>(row, key, [&](int pattern) { any |= pattern != kNoneSeen; });
    return any;
  }

  // Are all scores seen of kRows rows and kKeys keys? They exist.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ bool sees_all(int64 row, int64 key) const {
    bool all = true;
    visit<kRows, kKeys>(row, key, [&](int pattern) { all &= pattern == kAllSeen; });
    return all;
  }

  // The first tile of kKeys keys from `key` on, in steps of kKeys, of which some of kRows rows may see a key; `end` or
  // beyond it: none. By whole warps, all lanes of which get the same: each looks at a tile.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 next_keys(int64 row, int64 key, int64 end) const {
    return next<kKeys>(key, end, [&](int64 mine) { return sees_any<kRows, kKeys>(row, mine); });
  }
  // Likewise the last one up to the tile from `key` on, and not before `begin`; below `begin`: none.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 last_keys(int64 row, int64 key, int64 begin) const {
    for (; key >= begin; key -= kWarpThreads * kKeys) {
      const int64 mine = key - static_cast<int>(threadIdx.x % kWarpThreads) * kKeys;
      const uint32 seen = __ballot_sync(kAllLanes, mine >= begin && sees_any<kRows, kKeys>(row, mine));
      if (seen != 0) return key - (__ffs(static_cast<int>(seen)) - 1) * kKeys;
    }
    return key;
  }
  // As next_keys(), of rows.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ int64 next_rows(int64 row, int64 key, int64 end) const {
    return next<kRows>(row, end, [&](int64 mine) { return sees_any<kRows, kKeys>(mine, key); });
  }

 private:
  [[nodiscard]] __device__ __forceinline__ uint64 bits(int pattern, int word) const {
    if (pattern < 0) return pattern == kAllSeen ? ~uint64{0} : 0;
    return __ldg(map->patterns + int64{pattern} * kMapPatternWords + word);
  }

  // How many tiles of the map `count` rows or keys meet, that begin with a multiple of `count`.
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
