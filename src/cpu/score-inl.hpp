// From products q.k to scores: softcap, bias, ALiBi, masks, windows and dropout on one transposed score tile.
// Included once per SIMD target.
#if defined(ATTEND_CPU_SCORE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_SCORE_INL
#undef ATTEND_CPU_SCORE_INL
#else
#define ATTEND_CPU_SCORE_INL
#endif

#include <hwy/contrib/math/math-inl.h>

#include <type_traits>

#include "core/elements.hpp"
#include "cpu/pack-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

/// Scores carry a factor log2(e), so that the exponential is a power of two; but not with a bias: what is finite there
/// must stay finite, the lowest float32 too, and without rounding once more.
enum class ScoreUnit { kLog2, kNatural };

/// exp of a score, or of a difference of scores.
template <ScoreUnit kUnit>
HWY_INLINE Vector exponential(Vector score) {
  if constexpr (kUnit == ScoreUnit::kLog2) return exp2(score);
  return exp2(hn::Mul(score, hn::Set(kFloats, static_cast<float>(kLog2E))));
}

/// Scores of up to 128 keys (rows of the tile) and 64 query rows (its lanes): s[key * stride + lane].
struct ScoreTile {
  float* s;
  std::int64_t stride;
  std::int64_t key_begin;  // of the sequence
  std::int64_t num_keys;
  std::int64_t row_begin;  // of the sequence
  std::int64_t num_rows;   // <= 64; the lanes beyond mean nothing

  [[nodiscard]] HWY_INLINE float* key(std::int64_t k) const { return s + k * stride; }

  /// Lanes worth computing: whole vectors of every target.
  [[nodiscard]] HWY_INLINE int lanes() const { return static_cast<int>(padded(num_rows)); }
};

/// Which part of a tile is visible, for gemm(): per key the lanes, per lane the keys.
struct TileRanges {
  std::int32_t lane_begin[kBlockN], lane_end[kBlockN];      // exact
  std::int32_t column_begin[kBlockN], column_end[kBlockN];  // lane_begin, lane_end out to multiples of 16
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
      // A key that no row sees ends where the one before it did: a block of keys takes the last one's end.
      const std::int32_t earlier = k > 0 ? column_end[k - 1] : 0;
      column_end[k] = lane_begin[k] == lane_end[k] ? std::max(column_begin[k], earlier) : (lane_end[k] + 15) & ~15;
    }
  }

 private:
  /// The range of each further index is the first one moved by 1. All relative to `origin` and cut to [0, limit).
  static void fill_diagonal(KeyRange first, std::int64_t origin, std::int64_t count, std::int64_t limit,
                            std::int32_t* begin, std::int32_t* end) {
    constexpr std::int64_t kBound = 1 << 20;  // far from any tile, and small enough for 32-bit arithmetic
    const auto first_begin = static_cast<std::int32_t>(std::clamp(first.begin - origin, -kBound, kBound));
    const auto first_end = static_cast<std::int32_t>(std::clamp(first.end - origin, -kBound, kBound));
    const auto last = static_cast<std::int32_t>(limit);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(count); ++i) {
      begin[i] = std::min(std::max(first_begin + i, 0), last);
      end[i] = std::max(std::min(first_end + i, last), begin[i]);
    }
  }
};

/// What makes a score out of a product, for one query head of one sequence.
class ScoreRules {
 public:
  ScoreRules(const core::Problem& p, const core::Sequence& s, std::int64_t head)
      : p_(p), s_(s), head_(head), window_(p.window(s)), dropout_(p.dropout(s, head)) {
    if (p.alibi_slopes) slope_ = static_cast<float>(core::load(*p.alibi_slopes, s.index, head, 0, 0) * per_nat());
  }

  [[nodiscard]] ScoreUnit unit() const { return p_.bias ? ScoreUnit::kNatural : ScoreUnit::kLog2; }

  /// What a natural score is multiplied by.
  [[nodiscard]] double per_nat() const { return unit() == ScoreUnit::kNatural ? 1.0 : kLog2E; }

  /// Calls visit with unit() as a constant.
  template <class Visit>
  HWY_INLINE void with_unit(Visit visit) const {
    if (unit() == ScoreUnit::kNatural) {
      visit(std::integral_constant<ScoreUnit, ScoreUnit::kNatural>());
    } else {
      visit(std::integral_constant<ScoreUnit, ScoreUnit::kLog2>());
    }
  }

  /// The factor of q for which the product is a finished score (or, with softcap, the argument of its tanh).
  [[nodiscard]] float q_factor() const {
    return static_cast<float>(p_.softcap > 0 ? p_.scale / p_.softcap : p_.scale * per_nat());
  }

  [[nodiscard]] const WindowMask& window() const { return window_; }

  /// True when every row of the tile sees every key of it, as far as causal and window masks go.
  [[nodiscard]] bool fully_visible(const ScoreTile& tile) const {
    return window_.row(tile.row_begin).end >= tile.key_begin + tile.num_keys &&
           window_.row(tile.row_begin + tile.num_rows - 1).begin <= tile.key_begin;
  }

  /// True when finish() has nothing to do.
  [[nodiscard]] bool products_are_scores() const { return p_.softcap <= 0 && !p_.alibi_slopes && !p_.bias && !p_.mask; }

  /// Products to scores, in place, except for causal and window masks. With softcap, `derivative` (laid out like the
  /// tile; null: not wanted) gets d score / d product in units of scale.
  void finish(const ScoreTile& tile, float* derivative) const {
    if (p_.softcap > 0) apply_softcap(tile, derivative);
    if (p_.alibi_slopes) apply_alibi(tile);
    if (p_.bias) apply_bias(tile);
    if (p_.mask) apply_mask(tile);
  }

  /// Scores outside of the ranges become -inf.
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

  /// values[key * stride + lane] = 0 where dropped, times 1/(1-p) where kept.
  void drop(const ScoreTile& tile, float* values) const;

 private:
  void apply_softcap(const ScoreTile& tile, float* derivative) const {
    const Vector cap = hn::Set(kFloats, static_cast<float>(p_.softcap * per_nat()));
    const Vector one = hn::Set(kFloats, 1.0F);
    for (std::int64_t k = 0; k < tile.num_keys; ++k) {
      for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
        const Vector t = hn::Tanh(kFloats, hn::Load(kFloats, tile.key(k) + lane));
        hn::Store(hn::Mul(cap, t), kFloats, tile.key(k) + lane);
        if (derivative == nullptr) continue;
        hn::Store(hn::NegMulAdd(t, t, one), kFloats, derivative + k * tile.stride + lane);
      }
    }
  }

  void apply_alibi(const ScoreTile& tile) const {
    const Vector slope = hn::Set(kFloats, slope_);
    const auto step = static_cast<std::int32_t>(p_.position_step());
    const auto from_first_lane = hn::Mul(hn::Iota(kInts, 0), hn::Set(kInts, step));
    for (std::int64_t k = 0; k < tile.num_keys; ++k) {
      const auto first = static_cast<std::int32_t>(p_.distance(s_, tile.row_begin, tile.key_begin + k));
      for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
        const auto distance = hn::ConvertTo(kFloats, hn::Add(from_first_lane, hn::Set(kInts, first + step * lane)));
        float* at = tile.key(k) + lane;
        hn::Store(hn::NegMulAdd(slope, hn::Abs(distance), hn::Load(kFloats, at)), kFloats, at);
      }
    }
  }

  [[nodiscard]] Matrix score_rows(const Tensor& t, const ScoreTile& tile) const {
    char* first = static_cast<char*>(core::element(t, s_.batch, head_, tile.row_begin));
    return {first + tile.key_begin * dtype_bytes(t.dtype), t.dtype, tile.num_rows, tile.num_keys, t.stride[2]};
  }

  void apply_bias(const ScoreTile& tile) const {
    HWY_ALIGN float bias[kBlockN * kPanel];
    pack_transposed<false>(score_rows(*p_.bias, tile), 0, tile.num_rows, 1.0F, bias);
    const Vector lowest = hn::Set(kFloats, std::numeric_limits<float>::lowest());
    for (std::int64_t k = 0; k < tile.num_keys; ++k) {
      for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
        float* at = tile.key(k) + lane;
        const Vector added = hn::Load(kFloats, bias + k * kPanel + lane);
        const Vector sum = hn::Add(hn::Load(kFloats, at), added);
        // -inf hides a key; a finite bias never does, however large the score below it.
        const auto overflows = hn::And(hn::Lt(sum, lowest), hn::Ge(added, lowest));
        hn::Store(hn::IfThenElse(overflows, lowest, sum), kFloats, at);
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

  const core::Problem& p_;
  const core::Sequence s_;
  std::int64_t head_;
  WindowMask window_;
  DropoutMask dropout_;
  float slope_ = 0;
};

/// High and low halves of the 64-bit product of every lane with a constant.
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
  for (std::int64_t k = 0; k < tile.num_keys; k = quad_end) {  // the keys of one of Philox's quads at a time
    const std::int64_t quad = key_position(k) / 4;
    while (quad_end < tile.num_keys && key_position(quad_end) / 4 == quad) ++quad_end;
    for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
      // philox_4x32_10 of kernels/common/philox.cuh, one row a lane.
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
