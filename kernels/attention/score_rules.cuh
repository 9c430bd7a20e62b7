// Score modifications as rules. ScoreRules holds the options of one query head, and TileRules those of one tile of its
// scores. The rules are independent of the register layout of scores. grid_scores.cuh and accumulator_scores.cuh apply
// them.
//
//   const auto rules = ScoreRules<Config>::make(args.options, args.base.scale, span, sequence, head, num_heads_q);
//   const auto tile = rules.tile(first_row, first_key);
//
// Data of a disabled option is neither read nor computed.
#pragma once

#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/element.cuh"
#include "../common/numbers.cuh"
#include "block_map.cuh"
#include "custom_score.cuh"
#include "key_range.cuh"
#include "mask_window.cuh"
#include "philox.cuh"
#include "score_mods.cuh"
#include "score_transform.cuh"
#include "sequence.cuh"
#include "terms.cuh"
#include "tile_view.cuh"

namespace attend {

// Multiplies a gradient by a derivative, or by a number that has the derivative as a factor. A gradient of 0 stays 0.
// Otherwise an infinite derivative of a custom score function would turn it into NaN.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float times_slope(float gradient, float slope) {
  if constexpr (!Score<Config>::kIsCustomWithSlope) return gradient * slope;
  return gradient == 0.0f ? 0.0f : gradient * slope;
}

// Inputs of the custom score function, in addition to the positions of row and key. Used if Score<Config>::kIsCustom is
// set.
struct CustomScorePlace {
  const CapturedTensor* captured;
  int sequence, head;
  int seqlen_q, seqlen_k;
  CustomScoreCode::Held held;  // elements that TileRules::hold() has read
};

// A place in a tile at which the custom score function is evaluated. `row` and `key` are the thread's position in the
// tile. `rows_on` and `keys_on` are compile-time distances from this position.
struct CustomScoreOffset {
  int row, rows_on;
  int key, keys_on;
};

// The rules for one tile of scores. Rows and keys are counted from the first row and key of the tile.
template <class Config>
struct TileRules {
  TileView view;
  float scale;
  ScoreTransform transform;                               // used if kTransforms is set
  float slope;                                            // ALiBi slope, used if kAddsByPosition is set
  float distance_shift;                                   // OptionArgs::alibi_shift, used if kIsPart is set
  const typename TermsElementOf<Config>::Storage* terms;  // address of the bias at the tile's first row and key
  const unsigned char* mask;                              // address of the boolean mask at the tile's first row and key
  bool in_pairs;  // whether the elements of keys 2 n and 2 n + 1 in bias and mask are aligned so that one load can read
                  // them
  int64 terms_row_stride;
  int64 mask_row_stride;
  DropMask drop_mask;
  int64 first_row;  // number of the tile's first row, for drop_mask and the custom score function. If kIsPart is set,
                    // rows are numbered in the larger problem, where the rows of this problem are position_step apart
  int64 first_key;  // number of the tile's first key, for drop_mask and the custom score function
  uint32 position_step;  // distance of neighbouring rows in the larger problem, if kIsPart is set
  CustomScorePlace place;
  BlockMap<Config> map;

  // Returns the inputs of the custom score function for a score.
  [[nodiscard]] __device__ __forceinline__ ScorePoint<float> custom_point(float score,
                                                                          const CustomScoreOffset& in_tile) const {
    const int row = static_cast<int>(first_row) + in_tile.row, key = static_cast<int>(first_key) + in_tile.key;
    return {score,
            place.sequence,
            place.head,
            row + in_tile.rows_on,
            key + in_tile.keys_on,
            place.seqlen_q,
            place.seqlen_k,
            static_cast<float>(row) + static_cast<float>(in_tile.rows_on),
            static_cast<float>(key) + static_cast<float>(in_tile.keys_on),
            static_cast<float>(row - key),
            static_cast<float>(in_tile.rows_on - in_tile.keys_on)};
  }

  // Returns whether the custom score function reads the same elements for all pairs of the tile's first kRows rows and
  // kKeys keys. If so, it reads those elements, for use by custom_score<kWithSlope, true>.
  template <int kRows, int kKeys>
  [[nodiscard]] __device__ __forceinline__ bool hold() {
    if constexpr (!CustomScoreCode::kHolds) return false;
    const int first = static_cast<int>(first_row) - static_cast<int>(first_key);
    if (first - (kKeys - 1) < CustomScoreCode::kHeldFrom && first + (kRows - 1) > CustomScoreCode::kHeldUntil) {
      return false;
    }
    place.held = CustomScoreCode::hold(custom_point(0.0f, {}), place.captured);
    return true;
  }

  // Returns the custom score function's value for a score. `slope` receives the derivative if kWithSlope is set.
  template <bool kWithSlope, bool kHeld = false>
  [[nodiscard]] __device__ __forceinline__ float custom_score(float score, const CustomScoreOffset& in_tile,
                                                              float& slope) const {
    const ScorePoint<float> at = custom_point(score, in_tile);
    float value;
    if constexpr (kWithSlope && Score<Config>::kIsCustomWithSlope) {
      value = CustomScoreCode::value_and_slope(at, place.captured, slope);
      slope = value == -kInfinity ? 0.0f : slope;
    } else {
      slope = 1.0f;
      value = kHeld ? CustomScoreCode::held_value(at, place.captured, place.held)
                    : CustomScoreCode::value(at, place.captured);
    }
    // A hidden score stays hidden
    if constexpr (Score<Config>::kAddsFromMemory) return score == -kInfinity ? score : value;
    return value;
  }

  // Returns the signed distance i + off - j of a row i and key j, whose absolute value is multiplied by the ALiBi
  // slope. off is seqlen_k - seqlen_q.
  [[nodiscard]] __device__ __forceinline__ float distance(int row, int key) const {
    const auto distance = static_cast<float>(view.diagonal + row - key);
    if constexpr (Config::kIsPart) return distance + distance_shift;
    return distance;
  }

  // Returns whether every row of the tile sees every key of the tile, according to lengths, window and block map.
  template <int kRowsOfTile, int kKeysOfTile>
  [[nodiscard]] __device__ __forceinline__ bool all_visible() const {
    return view.template all_visible<kRowsOfTile, kKeysOfTile>() &&
           map.template sees_all<kRowsOfTile, kKeysOfTile>(first_row, first_key);
  }

  // Returns the score before the custom score function and masks are applied. `slope_out` receives d score / d (scale
  // q.k) if kTransforms is set.
  template <bool kAllVisible>
  [[nodiscard]] __device__ __forceinline__ float own_score(float product, int row, int key, float& slope_out) const {
    float score = __fmul_rn(product, scale);  // __fmul_rn prevents a fused multiply-add with the later subtraction of
                                              // lse. The product is then rounded as it was when lse was computed
    if constexpr (Score<Config>::kTransforms) {
      score = transform.template score<Config>(score, slope_out);
    }
    const bool exists = kAllVisible || (row < view.rows_left && key < view.keys_left);
    if constexpr (Score<Config>::kAddsFromMemory) {
      if (exists) {  // -inf hides the key, even if the product is NaN
        const float added = TermsElementOf<Config>::to_float(terms[row * terms_row_stride + key]);
        const float sum = Score<Config>::kTransforms ? score + added : fmaf(product, scale, added);
        score = added == -kInfinity ? added : sum;
      }
    }
    if constexpr (Score<Config>::kAddsByPosition) score -= slope * fabsf(distance(row, key));
    return score;
  }

  // Returns the score of a row and key, computed from q.k. `slope_out` receives d score / d (scale q.k) if kHasSlopes
  // is set. If kOfTerms is set, it receives d score / d bias instead.
  template <bool kAllVisible, bool kOfTerms = false>
  [[nodiscard]] __device__ __forceinline__ float score(float product, int row, int key, float& slope_out) const {
    const bool exists = kAllVisible || (row < view.rows_left && key < view.keys_left);
    float score = own_score<kAllVisible>(product, row, key, slope_out);
    if constexpr (Score<Config>::kIsCustom) {
      float own_slope;
      score = custom_score<true>(score, {row, 0, key, 0}, own_slope);
      slope_out = Score<Config>::kTransforms && !kOfTerms ? slope_out * own_slope : own_slope;
    }
    if constexpr (Score<Config>::kMasksFromMemory) {
      if (exists && mask[row * mask_row_stride + key] == 0) score = -kInfinity;
    }
    if constexpr (!kAllVisible) {
      if (!exists || !view.in_window<Config::kMask>(key - row)) score = -kInfinity;
    }
    return score;
  }

  // Returns the value of score<true>() with the rounding of tensor core kernels (accumulator_scores.cuh). The window is
  // not applied. Under a causal mask, the last bit of the ALiBi term may differ from the last bit in those kernels.
  [[nodiscard]] __device__ __forceinline__ float fused_score(float product, int row, int key) const {
    float addend = 0.0f;
    if constexpr (Score<Config>::kAddsFromMemory)
      addend = TermsElementOf<Config>::to_float(terms[row * terms_row_stride + key]);
    if constexpr (Score<Config>::kAddsByPosition) addend -= slope * fabsf(distance(row, key));
    if constexpr (Score<Config>::kMasksFromMemory) {
      if (mask[row * mask_row_stride + key] == 0) return -kInfinity;
    }
    float score = Score<Config>::kTransforms
                      ? fmaf(transform.template unit_value<Config>(product), transform.cap, addend)
                      : fmaf(product, scale, addend);
    if constexpr (Score<Config>::kIsCustom) {
      float unused;
      score = custom_score<false>(score, {row, 0, key, 0}, unused);
    }
    return score;
  }
};

// The rules for one query head of one sequence. TileRules describes the members of the same names.
template <class Config>
struct ScoreRules {
  float scale;
  ScoreTransform transform;
  float slope;
  float distance_shift;
  const typename TermsElementOf<Config>::Storage* terms;
  const unsigned char* mask;
  bool in_pairs;
  int64 terms_row_stride;
  int64 mask_row_stride;
  WindowMask window;
  DropMask drop_mask;
  const uint64* philox_state;
  int64 row_begin;
  int64 key_begin;
  uint32 position_step;
  CustomScorePlace place;
  BlockMap<Config> map;

  [[nodiscard]] static __device__ __forceinline__ WindowMask window_of(const OptionArgs& options,
                                                                       const SequenceSpan& span) {
    return attend::window_of<Config>(span.seqlen_q, span.seqlen_k, options.window_left, options.window_right);
  }

  [[nodiscard]] static __device__ __forceinline__ ScoreRules make(const OptionArgs& options, float scale,
                                                                  const SequenceSpan& span, uint32 sequence,
                                                                  uint32 head, uint32 num_heads_q) {
    ScoreRules rules = {};
    rules.scale = scale;
    rules.window = window_of(options, span);
    rules.in_pairs = true;
    rules.map = BlockMap<Config>::of(options.block_map, sequence, head);
    if constexpr (Score<Config>::kTransforms) rules.transform = ScoreTransform::make(options, scale);
    if constexpr (Score<Config>::kAddsByPosition) {
      rules.slope = options.alibi_slopes[sequence * options.alibi_sequence_stride + head * options.alibi_head_stride];
      if constexpr (Config::kIsPart) {
        rules.slope *= static_cast<float>(options.position_step);
        rules.distance_shift = options.alibi_shift;
      }
    }
    if constexpr (Score<Config>::kAddsFromMemory) {
      rules.terms = static_cast<const typename TermsElementOf<Config>::Storage*>(options.bias) +
                    terms_stride(options).offset(span.batch, head, 0);
      rules.terms_row_stride = terms_stride(options).row;
      rules.in_pairs &= are_pairs(rules.terms, terms_stride(options).row);
    }
    if constexpr (Score<Config>::kMasksFromMemory) {
      rules.mask = options.mask + options.mask_stride.offset(span.batch, head, 0);
      rules.mask_row_stride = options.mask_stride.row;
      rules.in_pairs &= are_pairs(rules.mask, options.mask_stride.row);
    }
    if constexpr (Score<Config>::kDrops) {
      rules.drop_mask = {options.dropout_key0, options.dropout_key1, sequence * num_heads_q + head,
                         options.dropout_stream, options.dropout_threshold};
      if constexpr (Config::kHasPhiloxState) rules.philox_state = options.philox_state;
      if constexpr (Config::kIsPart) {
        rules.drop_mask.head += options.dropout_head;
        rules.row_begin = options.row_begin;
        rules.key_begin = options.key_begin;
        rules.position_step = options.position_step;
      }
    }
    if constexpr (Score<Config>::kIsCustom) {
      rules.place = {options.captured,
                     static_cast<int>(sequence),
                     static_cast<int>(head),
                     static_cast<int>(span.seqlen_q),
                     static_cast<int>(span.seqlen_k),
                     {}};
    }
    return rules;
  }

  [[nodiscard]] __device__ __forceinline__ TileRules<Config> tile(int64 first_row, int64 first_key) const {
    TileRules<Config> rules = {};
    rules.view = TileView::of(window, first_row, first_key);
    rules.scale = scale;
    rules.transform = transform;
    rules.slope = slope;
    rules.distance_shift = distance_shift;
    rules.in_pairs = in_pairs;
    if constexpr (Score<Config>::kAddsFromMemory) rules.terms = terms + first_row * terms_row_stride + first_key;
    if constexpr (Score<Config>::kMasksFromMemory) rules.mask = mask + first_row * mask_row_stride + first_key;
    rules.terms_row_stride = terms_row_stride;
    rules.mask_row_stride = mask_row_stride;
    rules.drop_mask = drop_mask;
    if constexpr (Score<Config>::kDrops && Config::kHasPhiloxState) {
      rules.drop_mask.take_state(read_anew(philox_state), read_anew(philox_state + 1));
    }
    rules.first_row = first_row;
    rules.first_key = first_key;
    rules.place = place;
    rules.map = map;
    if constexpr (Config::kIsPart) {
      rules.position_step = position_step;
      rules.first_row = row_begin + position_step * first_row;
      rules.first_key = key_begin + position_step * first_key;
    }
    return rules;
  }

 private:
  // Reads the numbers again for each tile. If they were kept during a tile's products, they would occupy registers that
  // the products need.
  [[nodiscard]] static __device__ __forceinline__ uint64 read_anew(const uint64* from) {
    uint64 number;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(number) : "l"(from));
    return number;
  }
  // Returns whether elements 2 n and 2 n + 1 of every row are aligned to twice their size.
  template <class Storage>
  [[nodiscard]] static __device__ __forceinline__ bool are_pairs(const Storage* data, int64 row_stride) {
    return reinterpret_cast<uint64>(data) % (2 * sizeof(Storage)) == 0 && row_stride % 2 == 0;
  }
};

}  // namespace attend
