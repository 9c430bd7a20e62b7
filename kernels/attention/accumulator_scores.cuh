// Applies score rules to accumulators of mma.m16n8 and wgmma.m64 (accumulator_mask.cuh has the layout). The results are
// scores in the units of the online softmax.
//
//   const auto rules = ScoreRules<Config>::make(...);                          // once for each head
//   const float scale_log2 = score_scale_log2(rules);
//   RunningSoftmax<kScoreUnits<Config>> softmax;
//   const auto tile = rules.tile(first_row, first_key);                        // uniform
//   if (tile.all_visible<64, kBlockN>()) apply_rules<true>(tile, s, thread); else apply_rules<false>(tile, s, thread);
//   softmax.update(s, scale_log2, rescale);                                    // l is the sum of p before dropping
//   kept_bits<kCount>(tile, kept, thread), drop(s, kept);                      // accumulator_dropping.cuh
//
// apply_rules turns q.k into the values of this table. An unmodified score needs no instruction before its exponent:
//   modifications         value                           scale_log2        units
//   none, masks           q.k                             scale log2(e)     kFolded; needs scale > 0 (kFoldsScale)
//   a transform           its unit value                  cap log2(e)       kFolded
//   a term by position    the score                       log2(e)           kFolded
//   a term from memory    the score                       log2(e)           kNatural: it may be -FLT_MAX
//   custom                the score                       log2(e)           kFolded, or kNatural if it may be -FLT_MAX
// Masked scores become -inf. The meaning of lse, a natural logarithm, and of p does not depend on the units
// (online_softmax.cuh).
//
// In the usual layout, an accumulator row is a row of q, and its columns are keys. In the transposed layout, the
// accumulators hold k q^T. An accumulator row is then a key, and its columns are rows of q. Names of functions for the
// transposed layout end in _transposed. The argument `thread` is the number of the thread among the threads that hold
// the tile's accumulator rows. Each warp holds 16 rows. `first_row` and `first_key` are the first row and key of the
// tile.
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

// The visible columns of the thread's two accumulator rows. Columns are counted from the thread's first column. If the
// row or key of an accumulator row does not exist, its range is empty.
struct SeenColumns {
  int begin[kRowsOfThread];
  int end[kRowsOfThread];

  // Whether `begin` can lie behind the first column.
  template <MaskKind kMask>
  static constexpr bool kRowsHaveBegin = kMask == MaskKind::kWindow;
  template <MaskKind kMask>
  static constexpr bool kKeysHaveBegin = kMask != MaskKind::kFull;

  // Returns the range of keys that each row of q sees, for accumulator rows that are rows of q.
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

  // Returns the range of rows of q that see each key, for accumulator rows that are keys.
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

// Whether the scale is applied in the exponent. The scale must then be positive. If the scale is negative, a kernel
// uses -q.k (Config::kNegateScores) and the absolute value of the scale. If kFoldsScale is false, the scale may have
// either sign.
template <class Config>
constexpr bool kFoldsScale = Score<Config>::kKeepsProducts;

// score_scale() returns the factor that turns values into scores. score_scale_log2() returns the factor by which the
// softmax multiplies values.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float score_scale(const ScoreRules<Config>& rules) {
  if constexpr (Score<Config>::kAdds || Score<Config>::kIsCustom) return 1.0f;
  return Score<Config>::kTransforms ? rules.transform.cap : rules.scale;
}
template <class Config>
[[nodiscard]] __device__ __forceinline__ float score_scale_log2(const ScoreRules<Config>& rules) {
  return score_scale(rules) * kLog2E;
}

// Returns the base of the exponents if p is computed from lse. Then p is exp2_fast(exponent<units>(value, scale_log2,
// base)). The base is 0 if the row sees no key.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float exponent_base_of_lse(float lse) {
  return exponent_base(kScoreUnits<Config> == ScoreUnits::kNatural ? lse : lse * kLog2E);
}

// Loads two neighbouring elements of a row of the bias, with one load if they are aligned. Only the first `count`
// elements exist. The others become 0.
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

// Loads two neighbouring elements of the boolean mask. An element is false if the mask hides the key. Missing elements
// become true.
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

// Data that score modifications need for one of a thread's accumulator rows: the addresses of bias and mask, and the
// ALiBi term.
template <class Config>
struct AccumulatorLine {
  // Under a causal mask, all visible keys lie on one side of the diagonal. The ALiBi term then takes one multiply-add
  // for each score, instead of three instructions. Near the diagonal the term then has the rounding error of a distant
  // key, which is too large for float32 results.
  static constexpr bool kOneSided = Config::kMask == MaskKind::kCausal && Config::kElement != ElementType::kF32;
  const typename TermsElementOf<Config>::Storage* terms;  // address at the thread's first column
  const unsigned char* mask;                              // address at the thread's first column
  int64 terms_step;                                       // distance between neighbouring columns, in elements
  int64 mask_step;
  float distance;   // i + off - j at the thread's first column, for row i and key j, with off = seqlen_k - seqlen_q
  float term;       // ALiBi term at the thread's first column. Used if kOneSided is set
  float term_step;  // change of the term from one column to the next. Used if kOneSided is set

  // Returns the ALiBi term at column c, where the distance is `distance_there`.
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

  // Returns the custom score function's value for the score in column c.
  template <bool kWithSlope, bool kHeld>
  [[nodiscard]] static __device__ __forceinline__ float custom(const TileRules<Config>& rules, float score, int thread,
                                                               int h, int c, float& slope) {
    return rules.template custom_score<kWithSlope, kHeld>(
        score, {accumulator_row(thread), h * kRowHalf, accumulator_column(thread), c}, slope);
  }

  [[nodiscard]] static __device__ __forceinline__ SeenColumns seen(const TileRules<Config>& rules, int thread) {
    return SeenColumns::of_rows<Config::kMask>(rules.view, thread);
  }

  // Computes the sum of bias and ALiBi term for the keys c and c + 1, `count` of which exist. If kInPairs is set, one
  // load reads the bias of these two keys.
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

// An accumulator row that is a key. Its columns are rows of q, so they lie in different rows of a bias or mask in
// memory.
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

  // Computes the sum of bias and ALiBi term for the rows c and c + 1 of q, `count` of which exist. These rows are not
  // neighbours in memory.
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

constexpr int kLoadedTogether = 32;  // number of values for which a thread starts to load bias and mask before it waits

// Applies the rules to a thread's accumulators. Line is AccumulatorRow or AccumulatorKey. kHeld is set if
// TileRules::hold() has returned true for the tile.
template <class Line, bool kAllVisible, bool kHeld = false>
struct AccumulatorRules {
  using Config = typename Line::Kernel;

  // Returns the value in row h and column c, computed from q.k without masks. Sets `slope` to the derivative of the
  // score by scale q.k.
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

  // Replaces q.k in s by the values. `slope` receives the derivatives if kWithSlope is set. If kInPairs is set, one
  // load reads two elements of a tensor.
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
        __syncwarp();  // keeps later loads from being moved above this point, where they would occupy registers for
                       // longer
      const int h = i / 2 % 2;
      const int c = i / 4 * kColumnsOfTile;  // a compile-time constant once the loop is unrolled
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

// Replaces q.k in s by the values in the table at the top of this file. The size of s is a multiple of 4. kAllVisible
// is usually the result of TileRules::all_visible(). A weaker condition is enough: all keys of the tile exist and are
// visible, and if a modification reads memory, all rows exist too. `slope` has the size of s, and receives d
// score / d (scale q.k) if kHasSlopes is set. Masks are applied by selecting between two values and not by adding -inf,
// because a score or a value from memory may be NaN.
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

// Applies the rules to a tile in which all keys are visible, after TileRules::hold() has returned true.
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
