// Turns the products q.k of one transposed score tile into scores. Applies transforms, bias, ALiBi, a custom function,
// masks, windows and dropout. Included once per SIMD target.
#if defined(ATTEND_CPU_SCORE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_SCORE_INL
#undef ATTEND_CPU_SCORE_INL
#else
#define ATTEND_CPU_SCORE_INL
#endif

#include <hwy/contrib/math/math-inl.h>

#include <memory>
#include <utility>

#include "core/elements.hpp"
#include "cpu/bf16_dot.hpp"
#include "cpu/function_rows.hpp"
#include "cpu/pack-inl.hpp"
#include "kernels/attention/score_transform.cuh"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

constexpr double kLog2E = 1.4426950408889634;

/// Returns 2^((score - base) * log2_per_score). The subtraction comes first, because it is exact for scores near the
/// base. Equal scores then give equal results, and the row maximum gives exactly 1, however large it is.
HWY_INLINE Vector exp_above(Vector score, Vector base, Vector log2_per_score) {
  return exp2(hn::Mul(hn::Sub(score, base), log2_per_score));
}

/// Splits `scale`, the factor of a product q.k, into product_factor * nats_per_product. The code multiplies q by
/// product_factor. It is a power of two, so this multiplication does not round. product_factor is 0 if the scale is 0.
struct ScaleParts {
  float product_factor;
  float nats_per_product;  // > 0

  /// Returns the split for products of bf16 pairs. Those products read the elements of q unchanged, so product_factor
  /// contains only the sign of the scale.
  [[nodiscard]] static ScaleParts of_pairs(double scale) {
    const auto magnitude = static_cast<float>(std::abs(scale));
    if (magnitude == 0) return {0.0F, 1.0F};
    return {scale < 0 ? -1.0F : 1.0F, magnitude};
  }

  [[nodiscard]] static ScaleParts of_floats(double scale) {
    if (scale == 0) return {0.0F, 1.0F};
    const int exponent = std::ilogb(scale);
    return {std::copysign(std::ldexp(1.0F, exponent), static_cast<float>(scale)),
            static_cast<float>(std::ldexp(std::abs(scale), -exponent))};
  }
};

/// Scores of up to 128 keys (rows of the tile) and 64 query rows (lanes): s[key * stride + lane].
struct ScoreTile {
  float* s;
  std::int64_t stride;
  std::int64_t key_begin;  // position of the first key in the sequence
  std::int64_t num_keys;
  std::int64_t row_begin;  // position of the first row in the sequence
  std::int64_t num_rows;   // at most 64; lanes beyond num_rows are undefined

  [[nodiscard]] HWY_INLINE float* key(std::int64_t k) const { return s + k * stride; }

  /// Returns the number of lanes to compute: num_rows rounded up to a multiple of 16, which is a full vector on every
  /// target.
  [[nodiscard]] HWY_INLINE int lanes() const { return static_cast<int>(padded(num_rows)); }
};

/// The visible part of a tile, in the format of gemm(). For each key it has the range of lanes that see the key. For
/// each lane it has the range of keys that the lane sees.
struct TileRanges {
  std::int32_t lane_begin[kBlockN], lane_end[kBlockN];      // exact ranges
  std::int32_t column_begin[kBlockN], column_end[kBlockN];  // the ranges above, widened to multiples of 16
  std::int32_t key_begin[kPanel], key_end[kPanel];

  [[nodiscard]] RowRanges columns() const { return {column_begin, column_end}; }
  [[nodiscard]] RowRanges keys_of_lane() const { return {key_begin, key_end}; }
  [[nodiscard]] RowRanges lanes_of_key() const { return {lane_begin, lane_end}; }

  void fill(const WindowMask& window, const ScoreTile& tile) {
    fill_diagonal(window.unbounded_rows_of_key(tile.key_begin), tile.row_begin, tile.num_keys, tile.num_rows,
                  lane_begin, lane_end);
    fill_diagonal(window.unbounded_row(tile.row_begin), tile.key_begin, tile.num_rows, tile.num_keys, key_begin,
                  key_end);
    for (std::int64_t k = 0; k < tile.num_keys; ++k) {
      column_begin[k] = lane_begin[k] & ~15;
      // If no lane sees a key, the key's column_end is that of the preceding key. The reason is that a product uses the
      // column_end of the last key in a block for all keys of the block.
      const std::int32_t earlier = k > 0 ? column_end[k - 1] : 0;
      column_end[k] = lane_begin[k] == lane_end[k] ? std::max(column_begin[k], earlier) : (lane_end[k] + 15) & ~15;
    }
  }

 private:
  /// Fills arrays of ranges. Each range is the preceding one shifted by 1. All ranges are relative to `origin` and
  /// clipped to [0, limit).
  static void fill_diagonal(KeyRange first, std::int64_t origin, std::int64_t count, std::int64_t limit,
                            std::int32_t* begin, std::int32_t* end) {
    const std::int32_t first_begin = clamped_to_tile(first.begin - origin);
    const std::int32_t first_end = clamped_to_tile(first.end - origin);
    const auto last = static_cast<std::int32_t>(limit);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(count); ++i) {
      begin[i] = std::min(std::max(first_begin + i, 0), last);
      end[i] = std::max(std::min(first_end + i, last), begin[i]);
    }
  }
};

/// Additional outputs for the backward pass, in the layout of the tile. A null pointer means that the output is not
/// computed.
struct ScoreSlopes {
  // Derivative of the transformed score with respect to the product in units of scale.
  float* of_transform = nullptr;
  float* of_function = nullptr;      // derivative of the custom function with respect to its input
  float* before_function = nullptr;  // input of the custom function
};

/// Turns products into scores, for one query head of one sequence. If there is no transform, ALiBi, bias or custom
/// function, a score is the unchanged product, whose unit is nats_per_score(). With any of these options, scores are in
/// nats. Not thread-safe.
class ScoreRules {
 public:
  ScoreRules(const core::Problem& p, const core::Sequence& s, std::int64_t head)
      : p_(p),
        s_(s),
        head_(head),
        window_(p.window(s)),
        tiles_(p.seen_tiles(s, head)),
        dropout_(p.dropout(s, head)),
        scale_(reads_pairs_directly(p.k, p.q) ? ScaleParts::of_pairs(p.scale) : ScaleParts::of_floats(p.scale)) {
    if (p.alibi_slopes) slope_ = static_cast<float>(core::load(*p.alibi_slopes, s.index, head, 0, 0));
    if (p.custom_score != nullptr) function_ = std::make_unique<FunctionRows>(p, s, head);
  }

  /// Returns the factor of <q, k> in the packed product.
  [[nodiscard]] float product_factor() const { return scale_.product_factor; }

  /// Returns the factor that converts a finished score to nats.
  [[nodiscard]] float nats_per_score() const { return products_are_scores() ? scale_.nats_per_product : 1.0F; }

  /// Returns the factor that converts a difference of finished scores to an exponent of two.
  [[nodiscard]] float log2_per_score() const { return static_cast<float>(nats_per_score() * kLog2E); }

  [[nodiscard]] const WindowMask& window() const { return window_; }

  /// Returns false only if no row of the range sees any key of the range. Neither range may be empty.
  [[nodiscard]] bool may_see(std::int64_t row_begin, std::int64_t row_end, std::int64_t key_begin,
                             std::int64_t key_end) const {
    const KeyRange seen = window_.rows(row_begin, row_end);
    return seen.begin < key_end && seen.end > key_begin && tiles_.may_see(row_begin, row_end, key_begin, key_end);
  }

  /// Returns true if causal and window masks let every row of the tile see every key of the tile.
  [[nodiscard]] bool fully_visible(const ScoreTile& tile) const {
    return window_.row(tile.row_begin).end >= tile.key_begin + tile.num_keys &&
           window_.row(tile.row_begin + tile.num_rows - 1).begin <= tile.key_begin;
  }

  /// Turns products into scores in place. Does not apply causal and window masks; hide() does.
  void finish(const ScoreTile& tile, const ScoreSlopes& slopes) const {
    float nats = scale_.nats_per_product;  // unit of the tile's values
    if (p_.transforms_scores()) apply_transform(tile, slopes.of_transform, std::exchange(nats, 1.0F));
    if (p_.alibi_slopes) apply_alibi(tile, std::exchange(nats, 1.0F));
    if (p_.bias) apply_bias(tile, std::exchange(nats, 1.0F));
    if (function_) apply_function(tile, slopes, nats);
    if (p_.mask) apply_mask(tile);
    if (!tiles_.see_all()) apply_block_mask(tile);
  }

  /// Returns whether the scores of a row have overflowed. This is so if row_max, the row's maximum, is -inf or the
  /// lowest float, although at least one key is neither masked nor hidden by its bias.
  [[nodiscard]] bool has_overflowed(std::int64_t row, float row_max) const;

  /// Sets the scores of keys outside a row's range to -inf.
  static void hide(const ScoreTile& tile, const TileRanges& ranges) {
    const Vector minus_infinity = hn::Set(kFloats, -kInfinity);
    const Vector first_lanes = hn::ConvertTo(kFloats, hn::Iota(kInts, 0));
    for (std::int64_t k = 0; k < tile.num_keys; ++k) {
      const std::int32_t begin = ranges.lane_begin[k];
      const std::int32_t end = ranges.lane_end[k];
      for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
        if (begin <= lane && lane + kLanes <= end) continue;
        float* at = tile.key(k) + lane;
        const Vector seen_from = hn::Set(kFloats, static_cast<float>(begin - lane));
        const Vector seen_to = hn::Set(kFloats, static_cast<float>(end - lane));
        const auto visible = hn::And(hn::Ge(first_lanes, seen_from), hn::Lt(first_lanes, seen_to));
        hn::Store(hn::IfThenElse(visible, hn::Load(kFloats, at), minus_infinity), kFloats, at);
      }
    }
  }

  /// Applies dropout to values[key * stride + lane]: 0 if dropped, scaled by 1/(1-p) if kept.
  void drop(const ScoreTile& tile, float* values) const;

 private:
  [[nodiscard]] bool keeps_any(std::int64_t row, float row_max, KeyRange seen) const;

  /// Returns true if a score is its product times a constant.
  [[nodiscard]] bool products_are_scores() const {
    return !p_.transforms_scores() && !p_.alibi_slopes && !p_.bias && !function_;
  }

  void apply_function(const ScoreTile& tile, const ScoreSlopes& slopes, float nats) const {
    const Vector factor = hn::Set(kFloats, nats);
    for (std::int64_t k = 0; k < tile.num_keys && slopes.before_function != nullptr; ++k) {
      for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
        hn::Store(hn::Mul(hn::Load(kFloats, tile.key(k) + lane), factor), kFloats,
                  slopes.before_function + k * tile.stride + lane);
      }
    }
    function_->apply(
        {tile.s, tile.stride, tile.key_begin, tile.num_keys, tile.row_begin, tile.num_rows, slopes.of_function}, nats);
  }

  /// Computes cap tanh(s / cap). If s / cap is so small that the result equals s, returns s unchanged, because s / cap
  /// may underflow if cap is large.
  void apply_transform(const ScoreTile& tile, float* derivative, float nats) const {
    const Vector cap = hn::Set(kFloats, static_cast<float>(p_.transform_cap));
    const Vector one = hn::Set(kFloats, 1.0F);
    for (std::int64_t k = 0; k < tile.num_keys; ++k) {
      for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
        const Vector score = hn::Mul(hn::Load(kFloats, tile.key(k) + lane), hn::Set(kFloats, nats));
        const Vector x = hn::Div(score, cap);
        const Vector t = hn::Tanh(kFloats, x);
        const auto is_small = hn::Lt(hn::Abs(x), hn::Set(kFloats, kNearlyLinear));
        hn::Store(hn::IfThenElse(is_small, score, hn::Mul(cap, t)), kFloats, tile.key(k) + lane);
        if (derivative == nullptr) continue;
        hn::Store(hn::NegMulAdd(t, t, one), kFloats, derivative + k * tile.stride + lane);
      }
    }
  }

  void apply_alibi(const ScoreTile& tile, float nats) const {
    const Vector slope = hn::Set(kFloats, slope_);
    const auto step = static_cast<std::int32_t>(p_.position_step());
    const auto from_first_lane = hn::Mul(hn::Iota(kInts, 0), hn::Set(kInts, step));
    for (std::int64_t k = 0; k < tile.num_keys; ++k) {
      const auto first = static_cast<std::int32_t>(p_.distance(s_, tile.row_begin, tile.key_begin + k));
      for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
        const auto distance = hn::ConvertTo(kFloats, hn::Add(from_first_lane, hn::Set(kInts, first + step * lane)));
        float* at = tile.key(k) + lane;
        const Vector score = hn::Mul(hn::Load(kFloats, at), hn::Set(kFloats, nats));
        hn::Store(hn::NegMulAdd(slope, hn::Abs(distance), score), kFloats, at);
      }
    }
  }

  [[nodiscard]] Matrix score_rows(const Tensor& t, const ScoreTile& tile) const {
    char* first = static_cast<char*>(core::element(t, s_.batch, head_, tile.row_begin));
    return {first + tile.key_begin * dtype_bytes(t.dtype), t.dtype, tile.num_rows, tile.num_keys, t.stride[2]};
  }

  void apply_bias(const ScoreTile& tile, float nats) const {
    HWY_ALIGN float bias[kBlockN * kPanel];
    pack_transposed<false>(score_rows(*p_.bias, tile), 0, tile.num_rows, 1.0F, bias);
    const Vector lowest = hn::Set(kFloats, std::numeric_limits<float>::lowest());
    const Vector factor = hn::Set(kFloats, nats);
    for (std::int64_t k = 0; k < tile.num_keys; ++k) {
      for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
        float* at = tile.key(k) + lane;
        const Vector added = hn::Load(kFloats, bias + k * kPanel + lane);
        // If a bias is -inf, it hides its key, even if the product is NaN. A finite bias never hides a key, however low
        // the score is. If the sum is NaN, Max returns NaN, because the sum is its second operand.
        const Vector sum = hn::Max(lowest, hn::MulAdd(hn::Load(kFloats, at), factor, added));
        hn::Store(hn::IfThenElse(hn::Lt(added, lowest), added, sum), kFloats, at);
      }
    }
  }

  void apply_mask(const ScoreTile& tile) const {
    const Matrix mask = score_rows(*p_.mask, tile);
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      const std::uint8_t* keep = static_cast<const std::uint8_t*>(mask.data) + r * mask.row_stride;
      for (std::int64_t k = 0; k < tile.num_keys; ++k) {
        if (keep[k] == 0) tile.key(k)[r] = -kInfinity;
      }
    }
  }

  /// Applies the block mask. The tile's rows lie within one tile of the mask.
  void apply_block_mask(const ScoreTile& tile) const {
    const Vector minus_infinity = hn::Set(kFloats, -kInfinity);
    for (std::int64_t first = 0; first < tile.num_keys; first += core::kMaskTile) {
      const std::int64_t keys = std::min<std::int64_t>(core::kMaskTile, tile.num_keys - first);
      const std::int32_t number =
          tiles_.pattern_of(tile.row_begin / core::kMaskTile, (tile.key_begin + first) / core::kMaskTile);
      if (number == core::kAllSeen) continue;
      for (std::int64_t k = 0; k < keys; ++k) {
        const std::uint64_t seen = number == core::kNoneSeen ? 0 : tiles_.pattern(number)[static_cast<std::size_t>(k)];
        if (seen == ~std::uint64_t{0}) continue;
        for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
          const std::uint64_t bits = seen >> lane;
          const auto visible = hn::LoadMaskBits(kFloats, reinterpret_cast<const std::uint8_t*>(&bits));
          float* at = tile.key(first + k) + lane;
          hn::Store(hn::IfThenElse(visible, hn::Load(kFloats, at), minus_infinity), kFloats, at);
        }
      }
    }
  }

  const core::Problem& p_;
  const core::Sequence s_;
  std::int64_t head_;
  WindowMask window_;
  core::HeadTiles tiles_;
  DropMask dropout_;
  ScaleParts scale_;
  float slope_ = 0;
  std::unique_ptr<FunctionRows> function_;
};

/// The high and the low 32 bits of the 64-bit product of each lane with a constant.
struct WideProduct {
  hn::Vec<UintTag> high, low;
};

HWY_INLINE WideProduct multiply_wide(hn::Vec<UintTag> x, std::uint32_t constant) {
  const auto c = hn::Set(kUints, constant);
  const auto even = hn::BitCast(kUints, hn::MulEven(x, c));
  const auto odd = hn::BitCast(
      kUints,
      hn::MulEven(hn::BitCast(kUints, hn::ShiftRight<32>(hn::BitCast(hn::Repartition<std::uint64_t, UintTag>(), x))),
                  c));
  return {hn::OddEven(odd, hn::DupOdd(even)), hn::OddEven(hn::DupEven(odd), even)};
}

inline void ScoreRules::drop(const ScoreTile& tile, float* values) const {
  const Vector kept_factor = hn::Set(kFloats, static_cast<float>(1.0 / (1.0 - p_.dropout_p)));
  const auto threshold = hn::Set(kUints, dropout_.threshold);
  const auto row_step = static_cast<std::uint32_t>(p_.position_step());
  const auto from_first_lane = hn::Mul(hn::Iota(kUints, 0), hn::Set(kUints, row_step));
  const auto key_position = [&](std::int64_t k) { return p_.key_position(tile.key_begin + k); };
  std::int64_t quad_end = 0;
  // Each iteration handles up to four keys, whose random numbers come from one Philox call.
  for (std::int64_t k = 0; k < tile.num_keys; k = quad_end) {
    const std::int64_t quad = key_position(k) / 4;
    while (quad_end < tile.num_keys && key_position(quad_end) / 4 == quad) ++quad_end;
    for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
      // The loop computes the same function as philox_4x32_10 in kernels/attention/philox.cuh. Each lane handles one
      // row.
      const auto first_row = static_cast<std::uint32_t>(p_.row_position(tile.row_begin + lane));
      auto w0 = hn::Set(kUints, static_cast<std::uint32_t>(quad));
      auto w1 = hn::Add(from_first_lane, hn::Set(kUints, first_row));
      auto w2 = hn::Set(kUints, dropout_.head);
      auto w3 = hn::Set(kUints, dropout_.stream);
      std::uint32_t key0 = dropout_.key0;
      std::uint32_t key1 = dropout_.key1;
      for (int round = 0; round < kPhiloxRounds; ++round) {
        const WideProduct product0 = multiply_wide(w0, kPhiloxMultiplier0);
        const WideProduct product1 = multiply_wide(w2, kPhiloxMultiplier1);
        w0 = hn::Xor(hn::Xor(product1.high, w1), hn::Set(kUints, key0));
        w1 = product1.low;
        w2 = hn::Xor(hn::Xor(product0.high, w3), hn::Set(kUints, key1));
        w3 = product0.low;
        key0 += kPhiloxWeyl0;
        key1 += kPhiloxWeyl1;
      }
      const hn::Vec<UintTag> words[4] = {w0, w1, w2, w3};
      for (std::int64_t key = k; key < quad_end; ++key) {
        float* at = values + key * tile.stride + lane;
        const auto kept = hn::Not(hn::Lt(words[key_position(key) % 4], threshold));
        const Vector factor = hn::IfThenElseZero(hn::RebindMask(kFloats, kept), kept_factor);
        hn::Store(hn::Mul(hn::Load(kFloats, at), factor), kFloats, at);
      }
    }
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
