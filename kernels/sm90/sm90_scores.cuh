// From q.k in a consumer's registers to scores.
#pragma once

#include "sm90_epilogue.cuh"
#include "sm90_work.cuh"

namespace attend {

template <class Config>
struct Sm90Scores {
  static constexpr int kScores = Config::kBlockN / 2;
  const Sm90ForwardArgs& args;
  const Sm90Work& work;    // in shared memory: what only some tiles need takes no registers
  int consumer;            // number of the warpgroup
  Sm90KeyTiles unmasked;   // all of the warpgroup's rows see all of their keys

  // What scores are multiplied with to be exponents of 2.
  [[nodiscard]] __device__ __forceinline__ float multiplier() const {
    return args.scale_log2;
  }

  // Scores of tile n: -inf where the rows do not see the key. Without a causal mask only a row's last keys can be such.
  template <bool kIsFirst>
  __device__ __forceinline__ void finish(float (&s)[kScores], int n) const {
    if constexpr (kIsFirst || Config::kMask != MaskKind::kFull) {
      if (n >= unmasked.end) mask_end(s, n);
    }
    if constexpr (Config::kMask == MaskKind::kWindow) {
      if (n < unmasked.begin) mask_begin(s, n);
    }
  }
  __device__ __forceinline__ void drop(uint32 (&)[kScores / 2], int) const {}

 private:
  // A window wider than any sequence, as a number that a row can be added to.
  [[nodiscard]] static __device__ __forceinline__ int clamped(int64 window) {
    return static_cast<int>(min(window, int64{1} << 30));
  }
  // The thread's first key of tile n.
  [[nodiscard]] __device__ __forceinline__ int first_key(int n) const {
    return n * Config::kBlockN + accumulator_column(static_cast<int>(threadIdx.x));
  }
  // Key that the thread's row h = 0 has on the diagonal.
  [[nodiscard]] __device__ __forceinline__ int diagonal() const {
    return work.row + consumer * kWarpgroupRows + accumulator_row(static_cast<int>(threadIdx.x) % kWarpgroup) +
           work.seqlen_k - work.seqlen_q;
  }
  __device__ __forceinline__ void mask_end(float (&s)[kScores], int n) const {
    const int keys = work.seqlen_k - first_key(n);
    const int right = Config::kMask == MaskKind::kCausal ? 0 : clamped(args.options.window_right);
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      int first_unseen = keys;
      if constexpr (Config::kMask != MaskKind::kFull) {
        if (right >= 0) first_unseen = min(first_unseen, diagonal() + h * kRowHalf - first_key(n) + 1 + right);
      }
#pragma unroll
      for (int i = 2 * h; i < kScores; i += 4) {
        const int column = i / 4 * kColumnsOfTile;
        if (column >= first_unseen) s[i] = -kInfinity;
        if (column + 1 >= first_unseen) s[i + 1] = -kInfinity;
      }
    }
  }
  __device__ __forceinline__ void mask_begin(float (&s)[kScores], int n) const {
    const int left = clamped(args.options.window_left);  // not open, or no tile would come here
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const int first_seen = diagonal() + h * kRowHalf - left - first_key(n);
#pragma unroll
      for (int i = 2 * h; i < kScores; i += 4) {
        const int column = i / 4 * kColumnsOfTile;
        if (column < first_seen) s[i] = -kInfinity;
        if (column + 1 < first_seen) s[i + 1] = -kInfinity;
      }
    }
  }
};

}  // namespace attend
