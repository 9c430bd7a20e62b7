// Score rules for accumulators of mma.m16n8 and wgmma.m64 (accumulator_mask.cuh has the layout). They give scores in
// the units of the online softmax.
//
//   const auto rules = ScoreRules<Config>::make(...);                          // once for each head
//   const float scale_log2 = score_scale_log2(rules);
//   RunningSoftmax<kScoreUnits<Config>> softmax;
//   const auto tile = rules.tile(first_row, first_key);                        // uniform
//   if (tile.all_visible<64, kBlockN>()) apply_rules<true>(tile, s, thread); else apply_rules<false>(tile, s, thread);
//   softmax.update(s, scale_log2, rescale);                                    // l is the sum of p before dropping
//   kept_bits<kCount>(tile, kept, thread), drop(s, kept);                      // accumulator_dropping.cuh
//
// apply_rules turns q.k into these values. An unmodified score needs no instruction before its exponent:
//   modifications         value                           scale_log2        units
//   none, masks           q.k                             scale log2(e)     kFolded; needs scale > 0 (kFoldsScale)
//   a transform           its unit value                  cap log2(e)       kFolded
//   a term by position    the score                       log2(e)           kFolded
//   a term from memory    the score                       log2(e)           kNatural: it may be -FLT_MAX
//   custom                the score                       log2(e)           kFolded, or kNatural if it may be -FLT_MAX
// Masked scores become -inf. The natural logarithm of the sum, and p from it, are the same in both units:
// online_softmax.cuh.
//
// In the usual layout an accumulator row is a row of q, and its columns are keys. The transposed layout has the
// accumulators of k q^T: an accumulator row is a key, and its columns are rows of q. Functions for it have names that
// end in _transposed. thread: number among the threads that have the tile's rows of accumulators, 16 rows for each
// warp. first_row and first_key are the tile's.
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "accumulator_dropping.cuh"
#include "online_softmax.cuh"
#include "score_mods.cuh"
#include "tile_view.cuh"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "accumulator_map.cuh"
#include "score_rules.cuh"
#endif

namespace attend {

// The visible columns of the thread's two accumulator rows. Columns are counted from the thread's first. If a row or
// key does not exist, its range is empty.
struct SeenColumns {
  int begin[kRowsOfThread];
  int end[kRowsOfThread];

  // Whether `begin` can be above the first column.
  template <MaskKind kMask>
  static constexpr bool kRowsHaveBegin = kMask == MaskKind::kWindow;
  template <MaskKind kMask>
  static constexpr bool kKeysHaveBegin = kMask != MaskKind::kFull;

  // Returns the keys that each row sees. Accumulator rows are rows of q.
  template <MaskKind kMask>
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr SeenColumns of_rows(const TileView& view, int thread) {
    SeenColumns seen = {};
    const int column = accumulator_column(thread);
    ATTEND_UNROLL
    for (int h = 0; h < kRowsOfThread; ++h) {
      const int row = accumulator_row(thread) + h * kRowHalf;
      int begin = 0;
      int end = view.keys_left;
      const bool exists = row < view.rows_left;
      if constexpr (kMask != MaskKind::kFull) end = smaller(end, row + view.end_seen);
      if constexpr (kMask == MaskKind::kWindow) begin = row + view.first_seen;
      seen.begin[h] = begin - column;
      seen.end[h] = (exists ? end : 0) - column;
    }
    return seen;
  }

  // Returns the rows of q that see each key. Accumulator rows are keys.
  template <MaskKind kMask>
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr SeenColumns of_keys(const TileView& view, int thread) {
    SeenColumns seen = {};
    const int column = accumulator_column(thread);
    ATTEND_UNROLL
    for (int h = 0; h < kRowsOfThread; ++h) {
      const int key = accumulator_row(thread) + h * kRowHalf;
      int begin = 0;
      int end = view.rows_left;
      const bool exists = key < view.keys_left;
      if constexpr (kMask != MaskKind::kFull) begin = key - view.end_seen + 1;
      if constexpr (kMask == MaskKind::kWindow) end = smaller(end, key - view.first_seen + 1);
      seen.begin[h] = begin - column;
      seen.end[h] = (exists ? end : 0) - column;
    }
    return seen;
  }

 private:
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

template <class Config>
constexpr ScoreUnits kScoreUnits =
    Score<Config>::kAddsFromMemory || Score<Config>::kMayBeLowest ? ScoreUnits::kNatural : ScoreUnits::kFolded;

// Whether the scale is applied in the exponent. It must then be positive: for a negative scale a kernel uses -q.k
// (Config::kNegateScores) and the scale's magnitude. Otherwise the scale may have either sign.
template <class Config>
constexpr bool kFoldsScale = Score<Config>::kKeepsProducts;

// score_scale() turns values into scores by multiplication. score_scale_log2() is the softmax's factor of the values.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float score_scale(const ScoreRules<Config>& rules) {
  if constexpr (Score<Config>::kAdds || Score<Config>::kIsCustom) return 1.0f;
  return Score<Config>::kTransforms ? rules.transform.cap : rules.scale;
}
template <class Config>
[[nodiscard]] __device__ __forceinline__ float score_scale_log2(const ScoreRules<Config>& rules) {
  return score_scale(rules) * kLog2E;
}

// Returns the base of exponents if p is computed from lse: exp2_fast(exponent<units>(value, scale_log2, base)). For a
// row that sees no key, the base is 0.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float exponent_base_of_lse(float lse) {
  return exponent_base(kScoreUnits<Config> == ScoreUnits::kNatural ? lse : lse * kLog2E);
}

// Loads two neighbours of a row of the term from memory, with one load if they are aligned. Only the first `count`
// exist; the others become 0.
template <class Config, bool kInPairs>
__device__ __forceinline__ void load_terms_pair(float (&pair)[2], const typename TermsElementOf<Config>::Storage* from,
                                                int count) {
  using Element = TermsElementOf<Config>;
  pair[0] = pair[1] = 0.0f;
  if (kInPairs && count >= 2) {
    if constexpr (sizeof(typename Element::Storage) == 4) {
      const float2 both = __ldg(reinterpret_cast<const float2*>(from));
      pair[0] = both.x, pair[1] = both.y;
    } else {
      static_assert(sizeof(typename Element::Storage) == sizeof(Bits16));
      const uint32 both = __ldg(reinterpret_cast<const uint32*>(from));
      pair[0] = Element::low(both), pair[1] = Element::high(both);
    }
  } else {
    if (count > 0) pair[0] = Element::to_float(__ldg(from));
    if (count > 1) pair[1] = Element::to_float(__ldg(from + 1));
  }
}

// Loads two neighbours of the mask from memory: whether each may be visible. Missing elements become true.
template <bool kInPairs>
__device__ __forceinline__ void load_mask_pair(bool (&pair)[2], const unsigned char* from, int count) {
  pair[0] = pair[1] = true;
  if (kInPairs && count >= 2) {
    const uint32 both = __ldg(reinterpret_cast<const unsigned short*>(from));
    pair[0] = (both & 0xffu) != 0, pair[1] = (both & 0xff00u) != 0;
  } else {
    if (count > 0) pair[0] = __ldg(from) != 0;
    if (count > 1) pair[1] = __ldg(from + 1) != 0;
  }
}

// Data that score modifications need for one of a thread's accumulator rows: addresses, and the term by position.
template <class Config>
struct AccumulatorLine {
  // Under a causal mask all visible keys lie on one side of the diagonal. The term then takes one multiply-add for each
  // score, instead of three instructions.
  static constexpr bool kOneSided = Config::kMask == MaskKind::kCausal;
  const typename TermsElementOf<Config>::Storage* terms;  // address at the thread's first column
  const unsigned char* mask;                              // address at the thread's first column
  int64 terms_step;                                       // elements from one column to the next
  int64 mask_step;
  float distance;   // i + off - j at the thread's first column
  float term;       // kOneSided: the term by position at the thread's first column
  float term_step;  // kOneSided: change of the term with each column

  // Returns the term by position at column c, whose distance is `distance_there`.
  [[nodiscard]] __device__ __forceinline__ float term_at(const TileRules<Config>& rules, float c,
                                                         float distance_there) const {
    return kOneSided ? fmaf(term_step, c, term) : -rules.slope * fabsf(distance_there);
  }
};

// An accumulator row that is a row of q.
template <class Config>
struct AccumulatorRow {
  using Kernel = Config;
  static constexpr bool kIsKey = false;
  static constexpr bool kHasBegin = SeenColumns::kRowsHaveBegin<Config::kMask>;
  AccumulatorLine<Config> line;

  __device__ __forceinline__ AccumulatorRow(const TileRules<Config>& rules, int thread, int h) {
    const int row = accumulator_row(thread) + h * kRowHalf;
    const int key = accumulator_column(thread);
    if constexpr (Score<Config>::kAddsFromMemory) {
      line.terms = rules.terms + row * rules.terms_row_stride + key;
      line.terms_step = 1;
    }
    if constexpr (Score<Config>::kMasksFromMemory) {
      line.mask = rules.mask + row * rules.mask_row_stride + key;
      line.mask_step = 1;
    }
    if constexpr (Score<Config>::kAddsByPosition) {
      line.distance = rules.distance(row, key);
      line.term = -rules.slope * line.distance;
      line.term_step = rules.slope;
    }
  }

  // Returns the custom function of the score in column c.
  template <bool kWithSlope, bool kHeld>
  [[nodiscard]] static __device__ __forceinline__ float custom(const TileRules<Config>& rules, float score, int thread,
                                                               int h, int c, float& slope) {
    return rules.template custom_score<kWithSlope, kHeld>(
        score, {accumulator_row(thread), h * kRowHalf, accumulator_column(thread), c}, slope);
  }

  [[nodiscard]] static __device__ __forceinline__ SeenColumns seen(const TileRules<Config>& rules, int thread) {
    return SeenColumns::of_rows<Config::kMask>(rules.view, thread);
  }

  // Computes the sum of the terms of keys c and c + 1, `count` of which exist. kInPairs: one load reads both.
  template <bool kInPairs>
  __device__ __forceinline__ void addends(float (&sum)[2], const TileRules<Config>& rules, int c, int count) const {
    if constexpr (Score<Config>::kAddsFromMemory) load_terms_pair<Config, kInPairs>(sum, line.terms + c, count);
    if constexpr (Score<Config>::kAddsByPosition) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const auto columns = static_cast<float>(c + b);
        const float term = line.term_at(rules, columns, line.distance - columns);
        sum[b] = Score<Config>::kAddsFromMemory ? sum[b] + term : term;
      }
    }
  }

  template <bool kInPairs>
  __device__ __forceinline__ void unmasked(bool (&pair)[2], int c, int count) const {
    load_mask_pair<kInPairs>(pair, line.mask + c, count);
  }
};

// An accumulator row that is a key. The elements of its columns lie in different rows of a tensor in memory.
template <class Config>
struct AccumulatorKey {
  using Kernel = Config;
  static constexpr bool kIsKey = true;
  static constexpr bool kHasBegin = SeenColumns::kKeysHaveBegin<Config::kMask>;
  AccumulatorLine<Config> line;

  __device__ __forceinline__ AccumulatorKey(const TileRules<Config>& rules, int thread, int h) {
    const int key = accumulator_row(thread) + h * kRowHalf;
    const int row = accumulator_column(thread);
    if constexpr (Score<Config>::kAddsFromMemory) {
      line.terms = rules.terms + row * rules.terms_row_stride + key;
      line.terms_step = rules.terms_row_stride;
    }
    if constexpr (Score<Config>::kMasksFromMemory) {
      line.mask = rules.mask + row * rules.mask_row_stride + key;
      line.mask_step = rules.mask_row_stride;
    }
    if constexpr (Score<Config>::kAddsByPosition) {
      line.distance = rules.distance(row, key);
      line.term = -rules.slope * line.distance;
      line.term_step = -rules.slope;
    }
  }

  template <bool kWithSlope, bool kHeld>
  [[nodiscard]] static __device__ __forceinline__ float custom(const TileRules<Config>& rules, float score, int thread,
                                                               int h, int c, float& slope) {
    return rules.template custom_score<kWithSlope, kHeld>(
        score, {accumulator_column(thread), c, accumulator_row(thread), h * kRowHalf}, slope);
  }

  [[nodiscard]] static __device__ __forceinline__ SeenColumns seen(const TileRules<Config>& rules, int thread) {
    return SeenColumns::of_keys<Config::kMask>(rules.view, thread);
  }

  // Computes the sum of the terms of rows c and c + 1, `count` of which exist. They are not neighbours in memory.
  template <bool /*kInPairs*/>
  __device__ __forceinline__ void addends(float (&sum)[2], const TileRules<Config>& rules, int c, int count) const {
    if constexpr (Score<Config>::kAddsFromMemory) {
      sum[0] = count > 0 ? TermsElementOf<Config>::to_float(__ldg(line.terms + c * line.terms_step)) : 0.0f;
      sum[1] = count > 1 ? TermsElementOf<Config>::to_float(__ldg(line.terms + (c + 1) * line.terms_step)) : 0.0f;
    }
    if constexpr (Score<Config>::kAddsByPosition) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const auto columns = static_cast<float>(c + b);
        const float term = line.term_at(rules, columns, line.distance + columns);
        sum[b] = Score<Config>::kAddsFromMemory ? sum[b] + term : term;
      }
    }
  }

  template <bool /*kInPairs*/>
  __device__ __forceinline__ void unmasked(bool (&pair)[2], int c, int count) const {
    pair[0] = count <= 0 || __ldg(line.mask + c * line.mask_step) != 0;
    pair[1] = count <= 1 || __ldg(line.mask + (c + 1) * line.mask_step) != 0;
  }
};

constexpr int kLoadedTogether = 32;  // number of values whose term and mask a thread loads from memory before it waits

// Applies the rules to a thread's accumulators. Line: AccumulatorRow or AccumulatorKey. kHeld: after TileRules::hold().
template <class Line, bool kAllVisible, bool kHeld = false>
struct AccumulatorRules {
  using Config = typename Line::Kernel;

  // Returns the value before masks, of row h and column c, from q.k. slope: its derivative by scale q.k.
  template <bool kWithSlope>
  static __device__ __forceinline__ float value(const TileRules<Config>& rules, float product, float addend, int thread,
                                                int h, int c, float& slope) {
    float value = product;
    if constexpr (Score<Config>::kTransforms) {
      value = rules.transform.template unit_value<Config>(value);
      slope = ScoreTransform::slope_of_unit_value(value);
    }
    const float factor = Score<Config>::kTransforms ? rules.transform.cap : rules.scale;
    if constexpr (Score<Config>::kAdds) value = fmaf(value, factor, addend);
    if constexpr (Score<Config>::kIsCustom) {
      if constexpr (!Score<Config>::kAdds) value *= factor;
      float own_slope;
      value = Line::template custom<kWithSlope, kHeld>(rules, value, thread, h, c, own_slope);
      slope = Score<Config>::kTransforms ? slope * own_slope : own_slope;
    }
    return value;
  }

  // s: holds q.k, and receives the values. slope: an array of the same size; unused if kWithSlope is false. kInPairs:
  // one load reads two elements of a tensor.
  template <bool kInPairs, bool kWithSlope, int kCount>
  static __device__ __forceinline__ void apply(const TileRules<Config>& rules, float (&s)[kCount], int thread,
                                               float (&slope)[kCount]) {
    static_assert(kCount % 4 == 0);
    constexpr bool kAdds = Score<Config>::kAdds;
    const Line lines[kRowsOfThread] = {Line(rules, thread, 0), Line(rules, thread, 1)};
    SeenColumns seen;
    if constexpr (!kAllVisible) seen = Line::seen(rules, thread);
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      if (Score<Config>::kReadsMemory && i % kLoadedTogether == 0)
        __syncwarp();  // keeps later loads below this point, where they would occupy registers longer
      const int h = i / 2 % 2;
      const int c = i / 4 * kColumnsOfTile;  // a compile-time constant, as is everything derived only from it
      const int count = kAllVisible ? 2 : seen.end[h] - c;
      float addend[2] = {};
      bool unmasked[2];
      if constexpr (kAdds) lines[h].template addends<kInPairs>(addend, rules, c, count);
      if constexpr (Score<Config>::kMasksFromMemory) lines[h].template unmasked<kInPairs>(unmasked, c, count);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        float value = AccumulatorRules::value<kWithSlope>(rules, s[i + b], addend[b], thread, h, c + b, slope[i + b]);
        if constexpr (Score<Config>::kMasksFromMemory) value = unmasked[b] ? value : -kInfinity;
        if constexpr (!kAllVisible) {
          if (c + b >= seen.end[h]) value = -kInfinity;
          if (Line::kHasBegin && c + b < seen.begin[h]) value = -kInfinity;
        }
        s[i + b] = value;
      }
    }
    if constexpr (!kAllVisible) hide_unseen<Line>(rules, s, thread);
  }
};

// Replaces q.k in s by the values in the table at the top of this file. s: an array of floats, whose size is a multiple
// of 4. kAllVisible: the result of TileRules::all_visible(). A weaker condition suffices: all keys exist and are
// visible, and all rows exist if a modification reads memory. slope: an array of the same size, for d score / d (scale
// q.k) if kHasSlopes. Every mask is a select, because the replaced value, or a value from memory, may be NaN.
template <bool kAllVisible, bool kWithSlope = true, class Config>
__device__ __forceinline__ void apply_rules(const TileRules<Config>& rules, auto& s, int thread, auto& slope) {
  if constexpr (Score<Config>::kReadsMemory) {
    if (rules.in_pairs) {
      AccumulatorRules<AccumulatorRow<Config>, kAllVisible>::template apply<true, kWithSlope>(rules, s, thread, slope);
      return;
    }
  }
  AccumulatorRules<AccumulatorRow<Config>, kAllVisible>::template apply<false, kWithSlope>(rules, s, thread, slope);
}

template <bool kAllVisible, class Config>
__device__ __forceinline__ void apply_rules(const TileRules<Config>& rules, auto& s, int thread) {
  float unused[sizeof(s) / sizeof(float)];
  apply_rules<kAllVisible, false>(rules, s, thread, unused);
}

// Applies the rules if all keys are visible, after TileRules::hold() of the tile.
template <class Config>
__device__ __forceinline__ void apply_rules_held(const TileRules<Config>& rules, auto& s, int thread) {
  using Rules = AccumulatorRules<AccumulatorRow<Config>, true, true>;
  float unused[sizeof(s) / sizeof(float)];
  if constexpr (Score<Config>::kReadsMemory) {
    if (rules.in_pairs) return Rules::template apply<true, false>(rules, s, thread, unused);
  }
  Rules::template apply<false, false>(rules, s, thread, unused);
}

template <bool kAllVisible, class Config>
__device__ __forceinline__ void apply_rules_transposed(const TileRules<Config>& rules, auto& s, int thread,
                                                       auto& slope) {
  AccumulatorRules<AccumulatorKey<Config>, kAllVisible>::template apply<false, true>(rules, s, thread, slope);
}

#endif

}  // namespace attend
