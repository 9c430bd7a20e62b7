// The rules of scores for accumulators of mma.m16n8 and wgmma.m64 (accumulator_mask.cuh has the layout), in the units
// that the online softmax wants.
//
//   const auto rules = ScoreRules<Config>::make(...);                          // once a head
//   const float scale_log2 = score_scale_log2(rules);
//   RunningSoftmax<kScoreUnits<Config>> softmax;
//   const auto tile = rules.tile(first_row, first_key);                        // uniform
//   if (tile.all_visible<64, kBlockN>()) apply_rules<true>(tile, s, thread); else apply_rules<false>(tile, s, thread);
//   softmax.update(s, scale_log2, rescale);                                    // l is of p before dropout
//   uint32 kept[kKeptWords<kCount>];
//   kept_bits<kCount>(tile, kept, thread);
//   drop(s, kept);                                                             // o is scaled by 1 / (1 - p) at the end
//
// What apply_rules makes of q.k, so that a plain score costs nothing before its exponent:
//   modifications         value                           scale_log2        units
//   none, masks           q.k                             scale log2(e)     kFolded; wants scale > 0 (kFoldsScale)
//   a transform           its unit value                  cap log2(e)       kFolded
//   a term by position    the score                       log2(e)           kFolded
//   a term from memory    the score                       log2(e)           kNatural: it may be -FLT_MAX
// and -inf where masked. The natural logarithm of the sum, and p from it, follow in any units: online_softmax.cuh.
//
// kTransposed: the accumulators are of k q^T, their rows are keys and their columns rows of q.
// thread: of those that own the tile's rows of accumulators, 16 a warp; first_row and first_key are of its thread 0.
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "online_softmax.cuh"
#include "philox.cuh"
#include "score_mods.cuh"
#include "tile_view.cuh"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "score_rules.cuh"
#endif

namespace attend {

// Which columns are seen by the thread's two accumulator rows, columns counted from the thread's first. Nothing is seen
// of, or by, what does not exist.
struct SeenColumns {
  int begin[kRowsOfThread];
  int end[kRowsOfThread];

  template <MaskKind kMask, bool kTransposed>
  static constexpr bool kHasBegin = kTransposed ? kMask != MaskKind::kFull : kMask == MaskKind::kWindow;

  template <MaskKind kMask, bool kTransposed>
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr SeenColumns of(const TileView& view, int thread) {
    SeenColumns seen = {};
    const int column = accumulator_column(thread);
    ATTEND_UNROLL
    for (int h = 0; h < kRowsOfThread; ++h) {
      const int line = accumulator_row(thread) + h * kRowHalf;  // a row, or transposed a key
      int begin = 0;
      int end = kTransposed ? view.rows_left : view.keys_left;
      const bool exists = line < (kTransposed ? view.keys_left : view.rows_left);
      if constexpr (kTransposed) {
        if constexpr (kMask != MaskKind::kFull) begin = line - view.end_seen + 1;
        if constexpr (kMask == MaskKind::kWindow) end = smaller(end, line - view.first_seen + 1);
      } else {
        if constexpr (kMask != MaskKind::kFull) end = smaller(end, line + view.end_seen);
        if constexpr (kMask == MaskKind::kWindow) begin = line + view.first_seen;
      }
      seen.begin[h] = begin - column;
      seen.end[h] = (exists ? end : 0) - column;
    }
    return seen;
  }

 private:
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }
};

// Dropout. Bit i % 32 of word i / 32 says that value i is kept; four bits, a nibble, are those of one j.
template <int kCount>
constexpr int kKeptWords = (kCount + 31) / 32;

// Two neighbouring lanes have the four keys of a Philox block, two each, and two rows: so each lane computes the block
// of one row, the even lane of h = 0, and they exchange the bits of the keys that are the other's.
// computed: a nibble for each j, the four keys of row h = lane % 2; the partner's likewise.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 kept_of_pair(uint32 computed, uint32 partners, int lane) {
  constexpr uint32 kLow = 0x33333333u;  // the first two keys, or the two of h = 0
  const bool is_odd = lane % 2 != 0;
  return is_odd ? (computed & ~kLow) | (partners >> 2 & kLow) : (computed & kLow) | (partners << 2 & ~kLow);
}

// Transposed, the four keys are the same accumulator row of four lanes, 4 apart, and each lane computes the block of
// one of the row's four values: of c = 2 h + b = lane / 4 % 4.
// nibbles: those computed by the lane whose c is that of this lane XOR distance. Returns the bits that are this lane's.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 kept_of_four(uint32 nibbles, int distance, int lane) {
  const int key = lane / 4 % 4;
  return (nibbles >> key & 0x11111111u) << (key ^ distance);
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

template <class Config>
constexpr ScoreUnits kScoreUnits = Score<Config>::kAddsFromMemory ? ScoreUnits::kNatural : ScoreUnits::kFolded;

// The scale stays in the exponent and has to be positive: a kernel of a negative one takes -q.k (Config::kNegateScores)
// and its magnitude. Where it is false either will do.
template <class Config>
constexpr bool kFoldsScale = Score<Config>::kKeepsProducts;

// What values are multiplied with to be scores, and what the softmax multiplies them with.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float score_scale(const ScoreRules<Config>& rules) {
  if constexpr (Score<Config>::kAdds) return 1.0f;
  return Score<Config>::kTransforms ? rules.transform.cap : rules.scale;
}
template <class Config>
[[nodiscard]] __device__ __forceinline__ float score_scale_log2(const ScoreRules<Config>& rules) {
  return score_scale(rules) * kLog2E;
}

// What the exponent of a value is taken relative to when p follows from lse: exp2_fast(exponent<units>(value,
// scale_log2, base)). 0 for a row that sees nothing.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float exponent_base_of_lse(float lse) {
  return exponent_base(kScoreUnits<Config> == ScoreUnits::kNatural ? lse : lse * kLog2E);
}

// Two neighbours of a row of the bias, in one load where they are aligned; those of them below `count`, else 0.
template <class Config, bool kInPairs>
__device__ __forceinline__ void load_bias_pair(float (&pair)[2], const typename BiasElementOf<Config>::Storage* from,
                                               int count) {
  using Element = BiasElementOf<Config>;
  pair[0] = pair[1] = 0.0f;
  if (kInPairs && count >= 2) {
    if constexpr (sizeof(typename Element::Storage) == 4) {
      const float2 both = __ldg(reinterpret_cast<const float2*>(from));
      pair[0] = both.x, pair[1] = both.y;
    } else {
      const uint32 both = __ldg(reinterpret_cast<const uint32*>(from));
      pair[0] = Element::low(both), pair[1] = Element::high(both);
    }
  } else {
    if (count > 0) pair[0] = Element::to_float(__ldg(from));
    if (count > 1) pair[1] = Element::to_float(__ldg(from + 1));
  }
}

// Likewise of the mask: whether they may be seen.
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

// One accumulator row of a thread: where its bias and mask are, and its distance from the diagonal.
template <class Config, bool kTransposed>
struct AccumulatorLine {
  const typename BiasElementOf<Config>::Storage* bias;
  const unsigned char* mask;
  int64 bias_step;  // elements from one column to the next
  int64 mask_step;
  float distance;    // i + off - j at the thread's first column
  float alibi;       // what ALiBi adds there, where all that is seen lies on one side of the diagonal
  float alibi_step;  // and with each column

  // One side: always under a causal mask, and one multiply-add a score instead of three instructions.
  static constexpr bool kOneSided = Config::kMask == MaskKind::kCausal;

  __device__ __forceinline__ AccumulatorLine(const TileRules<Config>& rules, int thread, int h) {
    const int line = accumulator_row(thread) + h * kRowHalf;
    const int column = accumulator_column(thread);
    const int row = kTransposed ? column : line;
    const int key = kTransposed ? line : column;
    if constexpr (Score<Config>::kAddsFromMemory) {
      bias = rules.bias + row * rules.bias_row_stride + key;
      bias_step = kTransposed ? rules.bias_row_stride : 1;
    }
    if constexpr (Score<Config>::kMasksFromMemory) {
      mask = rules.mask + row * rules.mask_row_stride + key;
      mask_step = kTransposed ? rules.mask_row_stride : 1;
    }
    if constexpr (Score<Config>::kAddsByPosition) {
      distance = rules.distance(row, key);
      alibi = -rules.slope * distance;
      alibi_step = kTransposed ? -rules.slope : rules.slope;
    }
  }

  // What is added to the scores of columns c and c + 1, `count` of which exist.
  template <bool kInPairs>
  __device__ __forceinline__ void addends(float (&sum)[2], const TileRules<Config>& rules, int c, int count) const {
    if constexpr (Score<Config>::kAddsFromMemory) {
      if constexpr (kTransposed) {
        sum[0] = count > 0 ? BiasElementOf<Config>::to_float(__ldg(bias + c * bias_step)) : 0.0f;
        sum[1] = count > 1 ? BiasElementOf<Config>::to_float(__ldg(bias + (c + 1) * bias_step)) : 0.0f;
      } else {
        load_bias_pair<Config, kInPairs>(sum, bias + c, count);
      }
    }
    if constexpr (Score<Config>::kAddsByPosition) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const auto columns = static_cast<float>(c + b);
        const float value = kOneSided ? fmaf(alibi_step, columns, alibi)
                                      : -rules.slope * fabsf(kTransposed ? distance + columns : distance - columns);
        sum[b] = Score<Config>::kAddsFromMemory ? sum[b] + value : value;
      }
    }
  }

  template <bool kInPairs>
  __device__ __forceinline__ void unmasked(bool (&pair)[2], int c, int count) const {
    if constexpr (kTransposed) {
      pair[0] = count <= 0 || __ldg(mask + c * mask_step) != 0;
      pair[1] = count <= 1 || __ldg(mask + (c + 1) * mask_step) != 0;
    } else {
      load_mask_pair<kInPairs>(pair, mask + c, count);
    }
  }
};

constexpr int kLoadedTogether = 32;  // values whose bias and mask a thread waits for at once

template <bool kAllVisible, bool kTransposed, bool kInPairs, class Config, int kCount>
__device__ __forceinline__ void apply_rules_to_pairs(const TileRules<Config>& rules, float (&s)[kCount], int thread,
                                                     float (&slope)[kCount]) {
  constexpr bool kAdds = Score<Config>::kAdds;
  using Line = AccumulatorLine<Config, kTransposed>;
  const Line lines[kRowsOfThread] = {Line(rules, thread, 0), Line(rules, thread, 1)};
  SeenColumns seen;
  if constexpr (!kAllVisible) seen = SeenColumns::of<Config::kMask, kTransposed>(rules.view, thread);
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    if (Score<Config>::kReadsMemory && i % kLoadedTogether == 0)
      __syncwarp();  // no load moves up across it, where it would want a register
    const int h = i / 2 % 2;
    const int c = i / 4 * kColumnsOfTile;  // known when compiling, as all that follows from it alone
    const int count = kAllVisible ? 2 : seen.end[h] - c;
    float addend[2];
    bool unmasked[2];
    if constexpr (kAdds) lines[h].template addends<kInPairs>(addend, rules, c, count);
    if constexpr (Score<Config>::kMasksFromMemory) lines[h].template unmasked<kInPairs>(unmasked, c, count);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      float value = s[i + b];
      if constexpr (Score<Config>::kTransforms) {
        value = rules.transform.unit_value(value);
        slope[i + b] = ScoreTransform::slope_of_unit_value(value);
      }
      if constexpr (kAdds)
        value = fmaf(value, Score<Config>::kTransforms ? rules.transform.cap : rules.scale, addend[b]);
      if constexpr (Score<Config>::kMasksFromMemory) value = unmasked[b] ? value : -kInfinity;
      if constexpr (!kAllVisible) {
        if (c + b >= seen.end[h]) value = -kInfinity;
        if (SeenColumns::kHasBegin<Config::kMask, kTransposed> && c + b < seen.begin[h]) value = -kInfinity;
      }
      s[i + b] = value;
    }
  }
}

// s, which holds q.k, becomes values as the header says. kAllVisible: TileRules::all_visible(), or at least all keys
// exist and are seen, and all rows exist if a modification reads memory. slope: d score / d (scale q.k), kTransforms.
// All masks are selects: what stood there, or came from memory, may be NaN.
template <bool kAllVisible, bool kTransposed = false, class Config, int kCount>
__device__ __forceinline__ void apply_rules(const TileRules<Config>& rules, float (&s)[kCount], int thread,
                                            float (&slope)[kCount]) {
  static_assert(kCount % 4 == 0);
  if constexpr (!kTransposed && Score<Config>::kReadsMemory) {
    if (rules.in_pairs) {
      apply_rules_to_pairs<kAllVisible, kTransposed, true>(rules, s, thread, slope);
      return;
    }
  }
  apply_rules_to_pairs<kAllVisible, kTransposed, false>(rules, s, thread, slope);
}

template <bool kAllVisible, bool kTransposed = false, class Config, int kCount>
__device__ __forceinline__ void apply_rules(const TileRules<Config>& rules, float (&s)[kCount], int thread) {
  float unused[kCount];
  apply_rules<kAllVisible, kTransposed>(rules, s, thread, unused);
}

// A nibble of decisions for the four keys of a Philox block.
[[nodiscard]] __device__ __forceinline__ uint32 kept_nibble(const DropoutMask& dropout, uint32 row, uint32 key_quad) {
  const PhiloxWords words = dropout.words(row, key_quad);
  uint32 nibble = 0;
#pragma unroll
  for (int n = 0; n < 4; ++n) nibble |= static_cast<uint32>(words.word[n] >= dropout.threshold) << n;
  return nibble;
}

// Which values of the tile dropout keeps: kCount / 4 Philox blocks a thread, no block computed twice. first_key is a
// multiple of 4, and neighbours are so in the larger problem of a part. All lanes of the warp take part.
template <int kCount, bool kTransposed = false, class Config>
__device__ __forceinline__ void kept_bits(const TileRules<Config>& rules, uint32 (&kept)[kKeptWords<kCount>],
                                          int thread) {
  const int lane = thread % 32;
  const int mine = kTransposed ? lane / 4 % 4 : lane % 2;  // c or h of the blocks that this lane computes
  const int line = accumulator_row(thread) + (kTransposed ? mine / 2 : mine) * kRowHalf;
  const int column = kTransposed ? accumulator_column(thread) + mine % 2 : accumulator_column(thread);
  const auto row = static_cast<uint32>(rules.first_row + (kTransposed ? column : line));
  const auto key_quad = static_cast<uint32>((rules.first_key + (kTransposed ? line : column)) / 4);
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
    uint32 nibbles = 0;
#pragma unroll 2  // blocks on their way at once: their rounds wait for each other, their registers are wanted elsewhere
    for (int j = 8 * w; j < (8 * w + 8 < kCount / 4 ? 8 * w + 8 : kCount / 4); ++j) {
      const uint32 nibble = kTransposed ? kept_nibble(rules.dropout, row + j * kColumnsOfTile, key_quad)
                                        : kept_nibble(rules.dropout, row, key_quad + j * (kColumnsOfTile / 4));
      nibbles |= nibble << (j % 8 * 4);
    }
    if constexpr (kTransposed) {
      kept[w] = kept_of_four(nibbles, 0, lane);
#pragma unroll
      for (int distance = 1; distance < 4; ++distance) {
        kept[w] |= kept_of_four(__shfl_xor_sync(kAllLanes, nibbles, 4 * distance), distance, lane);
      }
    } else {
      kept[w] = kept_of_pair(nibbles, __shfl_xor_sync(kAllLanes, nibbles, 1), lane);
    }
  }
}

// Values that dropout does not keep become 0.
template <int kCount>
__device__ __forceinline__ void drop(float (&p)[kCount], const uint32 (&kept)[kKeptWords<kCount>]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) p[i] = (kept[i / 32] >> (i % 32) & 1u) != 0 ? p[i] : 0.0f;
}

#endif

}  // namespace attend
