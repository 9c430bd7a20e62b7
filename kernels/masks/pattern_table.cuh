// Merges equal patterns of tiles. All warps of a grid share a hash table with open addressing. No warp waits for
// another. A warp first writes its pattern, and then publishes it by one atomic operation. A warp that finds the slot
// occupied compares all words with the published pattern. Nothing is removed from the table.
#pragma once

#include "../common/warp_reduce.cuh"
#include "mask_args.cuh"

namespace attend {

// The words `lane` and `lane` + 32 of a pattern.
struct WordsOfLane {
  uint64 low, high;

  [[nodiscard]] __device__ __forceinline__ bool operator==(const WordsOfLane& other) const {
    return low == other.low && high == other.high;
  }
};

// Returns the hash of all words of the warp's pattern. All lanes get the same result.
[[nodiscard]] __device__ __forceinline__ uint32 hash_of_pattern(const WordsOfLane& own) {
  // The finaliser of MurmurHash3, applied to each word and its position
  const auto mixed = [](uint64 x, int place) {
    x += 0x9e3779b97f4a7c15ull * static_cast<uint64>(place + 1);
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
  };
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const uint64 both = mixed(own.low, lane) + mixed(own.high, lane + kWarpThreads);
  uint32 hash = static_cast<uint32>(both ^ both >> 32);
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    hash ^= __shfl_xor_sync(kAllLanes, hash, distance);
  }
  return hash;
}

// Access of one warp to the table.
class PatternTable {
 public:
  __device__ __forceinline__ explicit PatternTable(const MaskMakerArgs& args)
      : args_(args), lane_(static_cast<int>(threadIdx.x) % kWarpThreads) {}

  // Returns the place of the pattern, or of an equal one in the table. Returns kNoneSeen if no place is free. The
  // counts then show the shortage.
  [[nodiscard]] __device__ __forceinline__ int place_of(const WordsOfLane& own) {
    const uint32 hash = hash_of_pattern(own);
    bool is_written = false;
    for (uint32 slot = hash;; ++slot) {  // terminates, because there are fewer patterns than slots
      uint64* const at = args_.table + (slot & static_cast<uint32>(args_.table_slots - 1));
      uint64 entry = 0;
      if (lane_ == 0) entry = __ldcg(at);
      entry = __shfl_sync(kAllLanes, entry, 0);
      if (entry == 0) {
        if (!is_written && !write(own)) return kNoneSeen;
        is_written = true;
        if (lane_ == 0) entry = atomicCAS(at, uint64{0}, uint64{hash} << 32 | static_cast<uint32>(place_ + 1));
        entry = __shfl_sync(kAllLanes, entry, 0);
        if (entry == 0) return announced(own);
      }
      const int place = static_cast<int>(static_cast<uint32>(entry)) - 1;
      if (static_cast<uint32>(entry >> 32) == hash && is_at(place, own)) return place;
    }
  }

 private:
  [[nodiscard]] __device__ __forceinline__ uint64* words_at(int place) const {
    return args_.places + int64{place} * kLengthOfPattern + lane_;
  }
  // Writes the pattern to the warp's reserved place. The warp keeps the place until it publishes a pattern there.
  [[nodiscard]] __device__ __forceinline__ bool write(const WordsOfLane& own) {
    if (place_ < 0) {
      if (lane_ == 0) place_ = atomicAdd(&args_.counts->places, 1);
      place_ = __shfl_sync(kAllLanes, place_, 0);
    }
    if (place_ >= args_.most_places) return false;
    words_at(place_)[0] = own.low;
    words_at(place_)[kWarpThreads] = own.high;
    __threadfence();  // orders the words before their publication
    __syncwarp();     // waits until all lanes have written; the pattern may then be published
    return true;
  }
  // Numbers the pattern that has just been published, stores it under this number, and returns its place.
  [[nodiscard]] __device__ __forceinline__ int announced(const WordsOfLane& own) {
    int number = 0;
    if (lane_ == 0) {
      number = atomicAdd(&args_.counts->patterns, 1);
      args_.numbers[place_] = number;
    }
    number = __shfl_sync(kAllLanes, number, 0);
    uint64* const all = number < kFirstPatterns ? args_.first_patterns : args_.patterns;
    uint64* const words = all + int64{number} * kLengthOfPattern + lane_;
    words[0] = own.low;
    words[kWarpThreads] = own.high;
    const int place = place_;
    place_ = -1;
    return place;
  }
  [[nodiscard]] __device__ __forceinline__ bool is_at(int place, const WordsOfLane& own) const {
    __threadfence();  // orders these reads after the read of the slot
    const WordsOfLane other = {__ldcg(words_at(place)), __ldcg(words_at(place) + kWarpThreads)};
    return __all_sync(kAllLanes, own == other);
  }

  const MaskMakerArgs& args_;
  int lane_;
  int place_ = -1;  // the warp's reserved place, or -1 if it has none
};

}  // namespace attend
