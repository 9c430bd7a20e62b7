// From q.k in a consumer's registers to what the softmax takes, and which p dropout keeps.
//
// Without options that change a score, only masks are left, and a tile that is seen as a whole costs nothing. With them
// the rules of ../common/accumulator_scores.cuh are applied.
#pragma once

#include "../common/accumulator_scores.cuh"
#include "sm90_work.cuh"

namespace attend {

template <class Config>
struct Sm90Scores {
  static constexpr int kScores = Config::kBlockN / 2;
  static constexpr bool kHasRules =
      Config::kHasSoftcap || Config::kHasAlibi || Config::kHasBias || Config::kHasBoolMask;
  const Sm90ForwardArgs& args;
  const Sm90Work& work;   // in shared memory: what only some tiles need takes no registers
  int consumer;           // number of the warpgroup
  Sm90KeyTiles unmasked;  // all of the warpgroup's rows see all of their keys
  ScoreRules<Config> rules;

  [[nodiscard]] static __device__ __forceinline__ Sm90Scores of(const Sm90ForwardArgs& args, const Sm90Work& work,
                                                                int consumer, const WindowMask& mask) {
    Sm90Scores scores = {args, work, consumer, {}, {}};
    scores.unmasked =
        unmasked_tiles_of_rows<Config, kWarpgroupRows>(mask, work.row + consumer * kWarpgroupRows);
    if constexpr (kHasRules || Config::kHasDropout) {
      const SequenceSpan span = {Config::kIsVarlen ? 0 : static_cast<uint32>(work.sequence), 0, 0, work.seqlen_q,
                                 work.seqlen_k};
      scores.rules = ScoreRules<Config>::make(args.options, args.base.scale, span, work.sequence, work.head,
                                              args.base.num_heads_q);
    }
    return scores;
  }

  // What values are multiplied with to be exponents of 2.
  [[nodiscard]] __device__ __forceinline__ float multiplier() const {
    if constexpr (kFoldsScale<Config>) return args.scale_log2;
    return score_scale_log2(rules);
  }

  // Values of tile n: -inf where the rows do not see the key. Without a causal mask only a row's last keys can be such.
  template <bool kIsFirst>
  __device__ __forceinline__ void finish(float (&s)[kScores], int n) const {
    if constexpr (kHasRules) {
      const TileRules<Config> tile = rules_of_tile(n);
      if (tile.template all_visible<kWarpgroupRows, Config::kBlockN>()) {
        apply_rules<true>(tile, s, thread());
      } else {
        apply_rules<false>(tile, s, thread());
      }
    } else {
      if constexpr (kIsFirst || Config::kMask != MaskKind::kFull) {
        if (n >= unmasked.end) mask_end(s, n);
      }
      if constexpr (Config::kMask == MaskKind::kWindow) {
        if (n < unmasked.begin) mask_begin(s, n);
      }
    }
  }

  // Dropout's decisions on tile n; needs no scores, so it may run under the products that make them.
  __device__ __forceinline__ void decide(uint32 (&kept)[kKeptWords<kScores>], int n) const {
    if constexpr (Config::kHasDropout) kept_bits<kScores>(rules_of_tile(n), kept, thread());
  }
  // Those p that are not kept become 0. After their sum: it is that of all.
  __device__ __forceinline__ void drop(uint32 (&p)[kScores / 2], const uint32 (&kept)[kKeptWords<kScores>]) const {
    if constexpr (Config::kHasDropout) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const uint32 two = kept[i / 16] >> (i % 16 * 2);
        p[i] &= ((two & 1u) != 0 ? 0x0000ffffu : 0u) | ((two & 2u) != 0 ? 0xffff0000u : 0u);
      }
    }
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) % kWarpgroup; }
  [[nodiscard]] __device__ __forceinline__ TileRules<Config> rules_of_tile(int n) const {
    return rules.tile(work.row + consumer * kWarpgroupRows, static_cast<int64>(n) * Config::kBlockN);
  }
  // A window wider than any sequence, as a number that a row can be added to.
  [[nodiscard]] static __device__ __forceinline__ int clamped(int64 window) {
    return static_cast<int>(min(window, int64{1} << 30));
  }
  // The thread's first key of tile n.
  [[nodiscard]] __device__ __forceinline__ int first_key(int n) const {
    return n * Config::kBlockN + accumulator_column(thread());
  }
  // Key that the thread's row h = 0 has on the diagonal.
  [[nodiscard]] __device__ __forceinline__ int diagonal() const {
    return work.row + consumer * kWarpgroupRows + accumulator_row(thread()) + work.seqlen_k - work.seqlen_q;
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
