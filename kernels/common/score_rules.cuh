// From q.k to the score of a row and key, with every option that the Config has on:
//
//   s = scale q.k;  s = softcap tanh(s / softcap);  s += bias - slope |i + off - j|;  s = -inf where masked
//
// and which entries dropout keeps. Order and meaning are those of src/cpu/reference.cpp; off options cost nothing.
//
//   const auto rules = ScoreRules<Config>::make(args.options, args.base.scale, span, sequence, head, num_heads_q);
//   const auto tile = rules.tile(first_row, first_key);
//   tile.apply<kAllVisible>(s_frag, place, softcap_slope);   // place says which row and key number (i, j) of the thread belongs to
#pragma once

#include "args.cuh"
#include "config_enums.cuh"
#include "element.cuh"
#include "key_range.cuh"
#include "numbers.cuh"
#include "philox.cuh"
#include "sequence.cuh"

namespace attend {

// Which numbers of a tile of scores a thread has. Number (i, j) belongs to neighbour i along one side and, along the
// other, to place j % 4 of the j / 4-th chunk of four, the chunks lying kChunkStep apart.
template <bool kRowsAreI, int kChunkStep>
struct ScorePlace {
  static constexpr bool kKeysAreJ = kRowsAreI;
  int i_begin;  // a multiple of 4 where keys are i
  int j_begin;  // a multiple of 4

  [[nodiscard]] static __device__ __forceinline__ constexpr int step(int j) { return j % 4 + j / 4 * kChunkStep; }
  [[nodiscard]] __device__ __forceinline__ int row(int i, int j) const {
    return kRowsAreI ? i_begin + i : j_begin + step(j);
  }
  [[nodiscard]] __device__ __forceinline__ int key(int i, int j) const {
    return kRowsAreI ? j_begin + step(j) : i_begin + i;
  }
};

// The rules for one tile of scores; rows and keys count from its first.
template <class Config>
struct TileRules {
  using BiasElement = typename ElementTraits<Config::kBiasElement>::Type;

  float scale;
  float softcap;
  float slope;                                // of ALiBi
  const typename BiasElement::Storage* bias;  // of the tile's first row and key
  const unsigned char* mask;                  // likewise
  int64 bias_row_stride;
  int64 mask_row_stride;
  int diagonal;   // i + off - j of the tile's first row and key
  int rows_left;  // that exist; the rest of the tile lies beyond the sequence
  int keys_left;
  int first_seen;  // a row sees keys with first_seen <= key - row < end_seen
  int end_seen;
  DropoutMask dropout;
  int64 first_row;
  int64 first_key;

  // Does every row of the tile see every key of it, as far as lengths and window go?
  template <int kRowsOfTile, int kKeysOfTile>
  [[nodiscard]] __device__ __forceinline__ bool all_visible() const {
    return rows_left >= kRowsOfTile && keys_left >= kKeysOfTile && first_seen <= 1 - kRowsOfTile &&
           end_seen >= kKeysOfTile;
  }

  // s, which holds q.k, becomes the score. slope_out: d score / d (scale q.k), with softcap only.
  template <bool kAllVisible, class Place, int kM, int kN>
  __device__ __forceinline__ void apply(float (&s)[kM][kN], const Place& place, float (&slope_out)[kM][kN]) const {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int row = place.row(i, j);
        const int key = place.key(i, j);
        float score = s[i][j] * scale;
        if constexpr (Config::kHasSoftcap) {
          const float t = tanhf(score / softcap);
          score = softcap * t;
          slope_out[i][j] = fmaf(-t, t, 1.0f);
        }
        const bool exists = kAllVisible || (row < rows_left && key < keys_left);
        if constexpr (Config::kHasBias) {
          if (exists) score += BiasElement::to_float(bias[row * bias_row_stride + key]);
        }
        if constexpr (Config::kHasAlibi) score -= slope * fabsf(static_cast<float>(diagonal + row - key));
        if constexpr (Config::kHasBoolMask) {
          if (exists && mask[row * mask_row_stride + key] == 0) score = -kInfinity;
        }
        if constexpr (!kAllVisible) {
          const int distance = key - row;
          const bool seen = exists && (Config::kMask == MaskKind::kFull || distance < end_seen) &&
                            (Config::kMask != MaskKind::kWindow || distance >= first_seen);
          if (!seen) score = -kInfinity;
        }
        s[i][j] = score;
      }
    }
  }

  // Bit i * kN + j says that dropout keeps the number. Four neighbouring keys share one Philox block; block after
  // block, as several at a time would take registers from those who hold sums.
  template <int kM, int kN, class Place>
  [[nodiscard]] __device__ __forceinline__ uint32 kept(const Place& place) const {
    static_assert(kM * kN <= 32 && kN % 4 == 0 && (Place::kKeysAreJ || kM % 4 == 0));
    constexpr int kStep = Place::kKeysAreJ ? 1 : kN;  // from the bit of one key to that of the next
    uint32 bits = 0;
#pragma unroll 1
    for (int block = 0; block < kM * kN / 4; ++block) {
      const int i = Place::kKeysAreJ ? block / (kN / 4) : block / kN * 4;
      const int j = Place::kKeysAreJ ? block % (kN / 4) * 4 : block % kN;
      const PhiloxWords words = dropout.words(first_row + place.row(i, j), (first_key + place.key(i, j)) / 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        bits |= static_cast<uint32>(words.word[n] >= dropout.threshold) << (i * kN + j + n * kStep);
      }
    }
    return bits;
  }
};

// The rules for one query head of one sequence.
template <class Config>
struct ScoreRules {
  using BiasElement = typename ElementTraits<Config::kBiasElement>::Type;

  float scale;
  float softcap;
  float slope;
  const typename BiasElement::Storage* bias;
  const unsigned char* mask;
  int64 bias_row_stride;
  int64 mask_row_stride;
  WindowMask window;
  DropoutMask dropout;

  [[nodiscard]] static __device__ __forceinline__ WindowMask window_of(const OptionArgs& options,
                                                                       const SequenceSpan& span) {
    WindowMask window = {span.seqlen_q, span.seqlen_k, kOpenWindow, kOpenWindow};
    if constexpr (Config::kMask == MaskKind::kCausal) window.window_right = 0;
    if constexpr (Config::kMask == MaskKind::kWindow) {
      window.window_left = options.window_left;
      window.window_right = options.window_right;
    }
    return window;
  }

  [[nodiscard]] static __device__ __forceinline__ ScoreRules make(const OptionArgs& options, float scale,
                                                                  const SequenceSpan& span, uint32 sequence,
                                                                  uint32 head, uint32 num_heads_q) {
    ScoreRules rules = {};
    rules.scale = scale;
    rules.window = window_of(options, span);
    if constexpr (Config::kHasSoftcap) rules.softcap = options.softcap;
    if constexpr (Config::kHasAlibi) {
      rules.slope = options.alibi_slopes[sequence * options.alibi_sequence_stride + head * options.alibi_head_stride];
    }
    if constexpr (Config::kHasBias) {
      rules.bias = static_cast<const typename BiasElement::Storage*>(options.bias) +
                   options.bias_stride.offset(span.batch, head, 0);
      rules.bias_row_stride = options.bias_stride.row;
    }
    if constexpr (Config::kHasBoolMask) {
      rules.mask = options.mask + options.mask_stride.offset(span.batch, head, 0);
      rules.mask_row_stride = options.mask_stride.row;
    }
    if constexpr (Config::kHasDropout) {
      rules.dropout = {options.dropout_key0, options.dropout_key1, sequence * num_heads_q + head,
                       options.dropout_stream, options.dropout_threshold};
    }
    return rules;
  }

  [[nodiscard]] __device__ __forceinline__ TileRules<Config> tile(int64 first_row, int64 first_key) const {
    constexpr int64 kBeyond = 1 << 20;  // farther than a tile is wide
    const auto clamped = [](int64 value) { return static_cast<int>(max(-kBeyond, min(kBeyond, value))); };
    const int64 diagonal = first_row + window.seqlen_k - window.seqlen_q - first_key;
    TileRules<Config> rules = {};
    rules.scale = scale;
    rules.softcap = softcap;
    rules.slope = slope;
    if constexpr (Config::kHasBias) rules.bias = bias + first_row * bias_row_stride + first_key;
    if constexpr (Config::kHasBoolMask) rules.mask = mask + first_row * mask_row_stride + first_key;
    rules.bias_row_stride = bias_row_stride;
    rules.mask_row_stride = mask_row_stride;
    rules.diagonal = static_cast<int>(diagonal);
    rules.rows_left = clamped(window.seqlen_q - first_row);
    rules.keys_left = clamped(window.seqlen_k - first_key);
    rules.first_seen = clamped(window.window_left < 0 ? -kBeyond : diagonal - window.window_left);
    rules.end_seen = clamped(window.window_right < 0 ? kBeyond : diagonal + window.window_right + 1);
    rules.dropout = dropout;
    rules.first_row = first_row;
    rules.first_key = first_key;
    return rules;
  }
};

}  // namespace attend
