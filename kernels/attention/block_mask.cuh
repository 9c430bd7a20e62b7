// A caller's block mask as lists: the key tiles that each tile of rows sees, and the visible scores in them.
//
//   const auto list = KeyTileList<Config, kGroups>::of(args.options.block_mask, sequence, head, tile_of_rows);
//   for (int place = list.count - 1; place >= 0; --place) {
//     const auto tile = list.tile(place, group, thread);    // of the group's 64 rows
//     ...                                                   // s: scores of keys from tile.number * kBlockN on
//     tile.hide(s);
//   }
//
// If there is no block mask (Config::kHasBlockMask is false), a place in the list is a tile number, and nothing is
// loaded or hidden.
#pragma once

#include "../common/args.cuh"
#include "../common/numbers.cuh"

namespace attend {

// Returns whether the Config has a block mask. Kernel families that refuse block masks do not define the constant.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_block_mask() {
  if constexpr (requires { Config::kHasBlockMask; }) return Config::kHasBlockMask;
  return false;
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

constexpr int kPatternKeys = 64;  // number of keys, and of rows, in a pattern

// Returns a pointer to two indices for list `number` of a head: its first entry, and one past its last entry.
[[nodiscard]] __device__ __forceinline__ const int64* bounds_of_list(const BlockMaskArgs& mask, int sequence, int head,
                                                                     int number) {
  return mask.bounds + 2 * (sequence * mask.sequence_stride + head * mask.head_stride + number);
}

// A tile of keys, and which of its scores the rows of one warpgroup see.
template <class Config>
struct SeenKeyTile {
  static constexpr int kPatterns = has_block_mask<Config>() ? Config::kBlockN / kPatternKeys : 1;
  int number;
  bool has_hidden;         // whether some score is hidden, the same in all threads of the warpgroup
  uint32 seen[kPatterns];  // one bit for each of the thread's scores, set if the score is visible

  // Replaces the hidden scores of a 64-row accumulator by `hidden`.
  __device__ __forceinline__ void hide(auto& s, float hidden = -kInfinity) const {
    if constexpr (has_block_mask<Config>()) {
      if (!has_hidden) return;
#pragma unroll
      for (int i = 0; i < Config::kBlockN / 2; ++i) {
        if ((seen[i / 32] >> i % 32 & 1) == 0) s[i] = hidden;
      }
    }
  }
};

// The list of key tiles that a tile of rows sees. kGroups is the number of 64-row groups in the tile of rows.
template <class Config, int kGroups>
struct KeyTileList {
  static constexpr bool kIsOn = has_block_mask<Config>();
  static constexpr int kPatterns = SeenKeyTile<Config>::kPatterns;
  static constexpr int kWords = 1 + kGroups * kPatterns;  // number of words in an entry of the list
  static_assert(!kIsOn || Config::kBlockN % kPatternKeys == 0);
  const int* entries;
  const uint32* patterns;
  int count;

  [[nodiscard]] static __device__ __forceinline__ KeyTileList of(const BlockMaskArgs& mask, int sequence, int head,
                                                                 int tile_of_rows) {
    if constexpr (!kIsOn) return {};
    const int64* bounds = bounds_of_list(mask, sequence, head, tile_of_rows);
    const int64 first = __ldg(bounds);
    return {mask.entries + first * kWords, mask.patterns, static_cast<int>(__ldg(bounds + 1) - first)};
  }

  [[nodiscard]] __device__ __forceinline__ int number(int place) const {
    if constexpr (!kIsOn) return place;
    return __ldg(entries + static_cast<int64>(place) * kWords);
  }

  // Returns the tile at a place in the list. `thread` is the number of the thread in its warpgroup.
  [[nodiscard]] __device__ __forceinline__ SeenKeyTile<Config> tile(int place, int group, int thread) const {
    SeenKeyTile<Config> tile = {number(place), false, {}};
    if constexpr (kIsOn) {
      const int* of_group = entries + static_cast<int64>(place) * kWords + 1 + group * kPatterns;
#pragma unroll
      for (int n = 0; n < kPatterns; ++n) {
        const int pattern = __ldg(of_group + n);
        tile.seen[n] = pattern == kAllSeen ? ~0u : 0u;
        if (pattern >= 0) tile.seen[n] = __ldg(patterns + static_cast<int64>(pattern) * kPatternWords + thread);
        tile.has_hidden |= pattern != kAllSeen;
      }
    }
    return tile;
  }
};

// Lists for the backward pass. There is one list for each block of keys of a key head, with the 64-row tiles that see
// this block. Places are numbered consecutively through the lists of all blocks.
template <class Config>
struct RowTileLists {
  const BlockMaskArgs& mask;

  struct Places {
    int first;
    int count;
  };
  [[nodiscard]] __device__ __forceinline__ Places of(int sequence, int head_k, int block_of_keys) const {
    const int64* bounds = bounds_of_list(mask, sequence, head_k, block_of_keys);
    const int64 first = __ldg(bounds);
    return {static_cast<int>(first), static_cast<int>(__ldg(bounds + 1) - first)};
  }

  // Returns the number of the row tile at a place. Without a block mask, the place is this number.
  [[nodiscard]] __device__ __forceinline__ int number(int place) const {
    if constexpr (!has_block_mask<Config>()) return place;
    return __ldg(mask.entries + static_cast<int64>(place) * mask.entry_words);
  }
  // Returns the number of key blocks that add to the row tile's gradient before this key block does. Used if the order
  // of these additions is fixed.
  [[nodiscard]] __device__ __forceinline__ uint32 blocks_before(int place) const {
    return static_cast<uint32>(__ldg(mask.entries + (static_cast<int64>(place) + 1) * mask.entry_words - 1));
  }
  // Returns word i of a SeenRowTile, for query head `head_of_group` of the heads that share the key head.
  [[nodiscard]] __device__ __forceinline__ int word(int place, int head_of_group, int i) const {
    const int in_entry = i == 0 ? 0 : i + head_of_group * mask.head_words;
    return __ldg(mask.entries + static_cast<int64>(place) * mask.entry_words + in_entry);
  }
};

// Returns whether a row sees a key. The function searches the backward pass's lists for blocks of kBlockN keys. The
// search is binary, so the function suits callers that query few pairs.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool sees_pair(const BlockMaskArgs& mask, int sequence, int head_k,
                                                        int head_of_group, int row, int key) {
  const RowTileLists<Config> lists = {mask};
  const auto places = lists.of(sequence, head_k, key / Config::kBlockN);
  int place = places.first, end = places.first + places.count;  // range of the search. The numbers of row tiles are in
                                                                // ascending order
  const int tile = row / kPatternKeys;
  while (place < end) {
    const int middle = place + (end - place) / 2;
    if (lists.number(middle) < tile) {
      place = middle + 1;
    } else {
      end = middle;
    }
  }
  if (place == places.first + places.count || lists.number(place) != tile) return false;
  const int pattern = lists.word(place, head_of_group, 1 + key % Config::kBlockN / kPatternKeys);
  if (pattern < 0) return pattern == kAllSeen;
  const int k = key % kPatternKeys, q = row % kPatternKeys;  // position of the pair in an accumulator whose rows are
                                                             // keys
  const int thread = k / 16 * 32 + k % 8 * 4 + q % 8 / 2, bit = q / 8 * 4 + k / 8 % 2 * 2 + q % 2;
  return (__ldg(mask.patterns + static_cast<int64>(pattern) * kPatternWords + thread) >> bit & 1) != 0;
}

// A tile of rows that a block of keys sees. This struct is stored in shared memory next to the tile's q. kGroups is the
// number of 64-key groups in the block of keys.
template <int kGroups>
struct SeenRowTile {
  static constexpr int kWords = 1 + kGroups;
  int words[kWords];

  [[nodiscard]] __device__ __forceinline__ int number() const { return words[0]; }
  [[nodiscard]] __device__ __forceinline__ int pattern(int group) const { return words[1 + group]; }
};

#endif

}  // namespace attend
