// Computes a tile of query rows over leaves of cached keys: scores, exponentials, and weighted sums of the values.
// Included once per SIMD target.
#if defined(ATTEND_CPU_TILE_PASS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_TILE_PASS_INL
#undef ATTEND_CPU_TILE_PASS_INL
#else
#define ATTEND_CPU_TILE_PASS_INL
#endif

#include <algorithm>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "cpu/serving/cached_rows-inl.hpp"
#include "cpu/serving/leaf_keys-inl.hpp"
#include "cpu/serving/quantized-inl.hpp"
#include "cpu/serving/state-inl.hpp"
#include "kernels/attention/score_transform.cuh"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

using core::DecodeProblem;

/// Factors that convert products q.k to scores.
struct ScoreUnit {
  ScaleParts scale;
  bool products_are_scores;

  explicit ScoreUnit(const DecodeProblem& p)
      : scale(ScaleParts::of_floats(p.scale)), products_are_scores(!p.transforms_scores() && !p.alibi_slopes) {}

  /// Returns the factor that converts a finished score to nats.
  [[nodiscard]] float nats_per_score() const { return products_are_scores ? scale.nats_per_product : 1.0F; }
  [[nodiscard]] float log2_per_score() const { return static_cast<float>(nats_per_score() * kLog2E); }
};

// Number of rows of an 8-bit cache that are converted to floats at a time. With 128 columns, the converted rows take 16
// KiB.
constexpr int kRowsWidened = 32;
static_assert(kRowsWidened % kKeysAtOnce == 0 && kLeaf % kRowsWidened == 0);
static_assert(kLeavesAtOnce * kRowsWidened <= kMostAhead && kLeavesAtOnce % kKeysAtOnce == 0);
// Largest number of query rows for which several leaves are computed at a time.
constexpr int kRowsOfSeveral = kTileRows / kLeavesAtOnce;

/// State of a tile while it visits leaves. T is the type of the cache. For an 8-bit cache, T is float, and a few rows
/// at a time are converted to floats before they are multiplied.
template <class T>
class TilePass {
 public:
  TilePass(const DecodeProblem& p, const DecodeTile& tile, Scratch& scratch)
      : p_(p),
        tile_(tile),
        unit_(p),
        q_stride_(round_up(p.head_dim, kChunk)),
        columns_(state_columns(p.head_dim_v)),
        widens_(core::is_quantized(p.k.dtype)) {
    q_ = scratch.take(kTileRows * q_stride_);
    scores_ = scratch.take(kTileRows * kLeaf);
    missing_ = scratch.take(row_floats(p));
    std::fill_n(missing_, row_floats(p), 0.0F);
    widened_ = scratch.take(widened_floats(p));
    for (std::int64_t n = 0; n < kRowsWidened; ++n) widened_rows_[n] = widened_ + n * row_floats(p);
    pack_queries();
  }

  [[nodiscard]] static std::int64_t floats(const DecodeProblem& p) {
    return Scratch::size_of(kTileRows * round_up(p.head_dim, kChunk)) + Scratch::size_of(kTileRows * kLeaf) +
           Scratch::size_of(row_floats(p)) + Scratch::size_of(widened_floats(p));
  }

  /// Computes the results for one leaf or kLeavesAtOnce leaves, whichever is faster, starting with leaf number `leaf`.
  /// All leaf numbers are less than `end`. Each leaf's result is stored in a separate state. Returns the number of
  /// leaves computed.
  int visit(std::int64_t leaf, std::int64_t end, const State* states) {
    const KeyRange of_tile = tile_.keys(p_);
    const bool takes_several = !widens_ && tile_.prefetches && tile_.rows <= kRowsOfSeveral &&
                               leaf + kLeavesAtOnce <= end && leaf * kLeaf >= of_tile.begin &&
                               (leaf + kLeavesAtOnce) * kLeaf <= of_tile.end;
    const int leaves = takes_several ? kLeavesAtOnce : 1;
    keys_.find(p_, tile_, of_tile, leaf, leaves, missing_);
    multiply_keys();
    for (int n = 0; n < leaves; ++n) {
      for (int r = 0; r < tile_.rows; ++r) softmax(n, r, states[n]);
      std::fill_n(states[n].o, tile_.rows * columns_, 0.0F);
    }
    add_weighted_values(states);
    for (int n = 0; n < leaves; ++n) {
      for (int r = 0; r < tile_.rows; ++r) {
        float* o = states[n].o + r * columns_;
        if (!is_finite(o)) sum_seen_values(n, r, o);
      }
    }
    return leaves;
  }

 private:
  /// Returns the scores of row r in leaf n of the visited leaves.
  [[nodiscard]] float* scores_of(int n, int r) const { return scores_ + (n * kRowsOfSeveral + r) * kLeaf; }

  /// Multiplies the query rows with the keys, in the order of keys_.
  void multiply_keys() {
    // Distance in floats between the scores of neighbouring keys.
    const std::int64_t step = keys_.leaves > 1 ? kRowsOfSeveral * kLeaf : 1;
    const std::int64_t row_bytes = p_.head_dim * dtype_bytes(p_.k.dtype);
    const std::int64_t wanted = kKeyBytesAhead / row_bytes / keys_.leaves;
    const std::int64_t ahead = widens_ ? kRowsWidened : std::clamp<std::int64_t>(wanted, kKeysAtOnce, kMostAhead);
    const std::int64_t total = keys_.rows_scored();
    LinesAhead lines = lines_ahead(keys_.k + ahead, total, p_.head_dim);
    for (std::int64_t first = 0; first < total; first += kRowsWidened) {
      const std::int64_t count = std::min<std::int64_t>(kRowsWidened, total - first);
      const void* const* keys = rows_of_type(keys_.k + first, 1, count, p_.head_dim);
      for (std::int64_t j = 0; j < count; j += kKeysAtOnce) {
        float* const scores = scores_ + (first + j) / keys_.leaves;
        for_row_blocks(tile_.rows, [&](int r, auto rows) HWY_ATTR {
          score_keys<T, rows.value>(keys + j, p_.head_dim, q_ + r * q_stride_, q_stride_, scores + r * kLeaf, step,
                                    kPrefetches && tile_.prefetches ? &lines : nullptr);
        });
      }
    }
  }

  /// For each leaf, adds the leaf's values, weighted by the exponentials of the scores, to the leaf's state. After a
  /// few rows of one leaf, the loop continues with the next leaf.
  void add_weighted_values(const State* states) {
    const std::int64_t at_once = values_at_once();
    const std::int64_t step = widens_ ? 1 : keys_.leaves;
    const std::int64_t total = keys_.leaves * keys_.leaf[0].count;
    LinesAhead lines = lines_ahead(keys_.v + at_once * keys_.leaves, total, p_.head_dim_v);
    for (std::int64_t j = 0; j < keys_.leaf[0].count; j += at_once) {
      const std::int64_t count = std::min(at_once, keys_.leaf[0].count - j);
      for (int n = 0; n < keys_.leaves; ++n) {
        const void* const* values = rows_of_type(keys_.v + j * keys_.leaves + n, keys_.leaves, count, p_.head_dim_v);
        for_row_blocks(tile_.rows, [&](int r, auto rows) HWY_ATTR {
          add_values<T, rows.value>(values, step, kPrefetches && tile_.prefetches ? &lines : nullptr, count,
                                    p_.head_dim_v, scores_of(n, r) + j, states[n].o + r * columns_, columns_);
        });
      }
    }
  }

  /// Returns an object that prefetches `count` rows of the cache. The prefetches are spread evenly over the time in
  /// which all query rows are multiplied with `count` rows of `cols` columns.
  [[nodiscard]] LinesAhead lines_ahead(const void* const* rows, std::int64_t count, std::int64_t cols) const {
    const int row_blocks = tile_.rows / kRowsAtOnce + (tile_.rows >> 1 & 1) + (tile_.rows & 1);
    return {rows, count, cols * dtype_bytes(p_.k.dtype), row_blocks * cols * static_cast<std::int64_t>(sizeof(T))};
  }

  /// Returns the number of value rows in a block. The block must fit into the first-level cache, because each group of
  /// a few query rows reads the block again.
  [[nodiscard]] std::int64_t values_at_once() const {
    if (widens_) return kRowsWidened;
    if (!tile_.prefetches) return kMostValuesAtOnce;
    const std::int64_t row_bytes = std::max(p_.head_dim, p_.head_dim_v) * dtype_bytes(p_.k.dtype);
    const std::int64_t wanted = kValueBytesAtOnce / row_bytes / keys_.leaves;
    return std::clamp(wanted, kFewestValuesAtOnce / keys_.leaves, kMostValuesAtOnce / keys_.leaves);
  }

  [[nodiscard]] static std::int64_t row_floats(const DecodeProblem& p) {
    return round_up(std::max(p.head_dim, p.head_dim_v), kChunk);
  }

  [[nodiscard]] static std::int64_t widened_floats(const DecodeProblem& p) {
    return core::is_quantized(p.k.dtype) ? kRowsWidened * row_floats(p) : 0;
  }

  /// Returns `count` rows of the cache, rows[i * step], as rows of T. The result points into the cache, or to copies
  /// converted to floats. Converted copies are valid until the next call.
  HWY_INLINE const void* const* rows_of_type(const void* const* rows, std::int64_t step, std::int64_t count,
                                             std::int64_t cols) {
    if constexpr (std::is_same_v<T, float>) {
      if (widens_) {
        widen_rows(rows, step, count, p_.k.dtype, cols, widened_, row_floats(p_));
        return widened_rows_;
      }
    }
    return rows;
  }

  void pack_queries() {
    for (int r = 0; r < tile_.rows; ++r) {
      const core::Matrix rows = core::q_matrix(p_.q, tile_.sequence, tile_.head(p_, r));
      const std::int64_t begin = tile_.row(p_, r) * rows.row_stride;
      if constexpr (std::is_same_v<T, float>) {  // if the cache has 8 bits, q may have any type
        with_type(rows.data, rows.dtype, [&](const auto* data) HWY_ATTR { pack_query(data + begin, r); });
      } else {
        pack_query(static_cast<const T*>(rows.data) + begin, r);
      }
    }
  }

  template <class Q>
  void pack_query(const Q* from, int r) {
    const Vector factor = hn::Set(kFloats, unit_.scale.product_factor);
    for (std::int64_t c = 0; c < p_.head_dim; c += kChunk) {
      const Columns q = query_columns<T>(from + c, p_.head_dim - c);
      hn::StoreU(hn::Mul(q.a, factor), kFloats, q_ + r * q_stride_ + c);
      hn::StoreU(hn::Mul(q.b, factor), kFloats, q_ + r * q_stride_ + c + kLanes);
    }
  }

  /// Returns whether the row sees key j of leaf n.
  [[nodiscard]] bool sees(int n, int r, std::int64_t j) const {
    const std::int64_t i = tile_.row(p_, r);
    const std::int64_t key = keys_.leaf[n].begin + j;
    return p_.keys_of_row(tile_.sequence, i).contains(key) && keys_.k[j * keys_.leaves + n] != missing_ &&
           !p_.tree_hides(tile_.sequence, i, key);
  }

  /// Turns products into scores. The scores of keys that the row does not see become -inf. So do the scores after the
  /// last key that fill the last vector.
  void finish_scores(int n, int r) {
    const LeafKeys& keys = keys_.leaf[n];
    float* s = scores_of(n, r);
    const std::int64_t whole = round_up(keys.count, kLanes);
    if (p_.k_descale.data != nullptr) keys.multiply(s, keys.k_descale);
    if (!unit_.products_are_scores) transform(n, r, whole);
    const KeyRange seen = p_.keys_of_row(tile_.sequence, tile_.row(p_, r));
    const std::int64_t from = std::clamp<std::int64_t>(seen.begin - keys.begin, 0, keys.count);
    const std::int64_t to = std::clamp<std::int64_t>(seen.end - keys.begin, from, keys.count);
    std::fill(s, s + from, -kInfinity);
    std::fill(s + to, s + whole, -kInfinity);
    if (!keys.some_missing && p_.tree_mask == nullptr) return;
    const std::int64_t tree_begin = tile_.sequence.seqlen_k - tile_.sequence.seqlen_q - keys.begin;
    for (std::int64_t j = keys.some_missing ? from : std::max(from, tree_begin); j < to; ++j) {
      if (!sees(n, r, j)) s[j] = -kInfinity;
    }
  }

  /// Applies the score transform and ALiBi. The results are scores in nats.
  void transform(int n, int r, std::int64_t whole) {
    float* s = scores_of(n, r);
    const core::DecodeSequence& seq = tile_.sequence;
    const Vector nats = hn::Set(kFloats, unit_.scale.nats_per_product);
    const Vector cap = hn::Set(kFloats, static_cast<float>(p_.transform_cap));
    const double slope_of_head = p_.alibi_slopes ? core::load(*p_.alibi_slopes, seq.index, tile_.head(p_, r), 0, 0) : 0;
    const Vector slope = hn::Set(kFloats, static_cast<float>(slope_of_head));
    const std::int64_t first = tile_.row(p_, r) + seq.seqlen_k - seq.seqlen_q - keys_.leaf[n].begin;
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      Vector score = hn::Mul(hn::LoadU(kFloats, s + j), nats);
      if (p_.transforms_scores()) {
        const Vector x = hn::Div(score, cap);
        const auto is_small = hn::Lt(hn::Abs(x), hn::Set(kFloats, kNearlyLinear));
        score = hn::IfThenElse(is_small, score, hn::Mul(cap, hn::Tanh(kFloats, x)));
      }
      if (p_.alibi_slopes) {
        const auto distance = hn::Sub(hn::Set(kInts, static_cast<std::int32_t>(first - j)), hn::Iota(kInts, 0));
        score = hn::NegMulAdd(slope, hn::Abs(hn::ConvertTo(kFloats, distance)), score);
      }
      hn::StoreU(score, kFloats, s + j);
    }
  }

  /// Turns the scores of row r in leaf n into exponentials. Also computes the maximum of the scores and the sum of the
  /// exponentials.
  void softmax(int n, int r, const State& state) {
    const LeafKeys& keys = keys_.leaf[n];
    finish_scores(n, r);
    float* s = scores_of(n, r);
    Vector top = hn::Set(kFloats, -kInfinity);
    // If a score is NaN, Max drops it, because the score is the first operand. The exponential of that score is still
    // NaN.
    for (std::int64_t j = 0; j < keys.count; j += kLanes) top = hn::Max(hn::LoadU(kFloats, s + j), top);
    const float row_max = hn::GetLane(hn::MaxOfLanes(kFloats, top));
    const Vector base = hn::Set(kFloats, row_max == -kInfinity ? 0.0F : row_max);
    const Vector unit = hn::Set(kFloats, unit_.log2_per_score());
    Vector sum = hn::Zero(kFloats);
    for (std::int64_t j = 0; j < keys.count; j += kLanes) {
      const Vector p = exp_above(hn::LoadU(kFloats, s + j), base, unit);
      hn::StoreU(p, kFloats, s + j);
      sum = hn::Add(sum, p);
    }
    state.row_max[r] = row_max;
    state.row_sum[r] = hn::GetLane(hn::SumOfLanes(kFloats, sum));
    if (p_.v_descale.data != nullptr) keys.multiply(s, keys.v_descale);  // the factors of V become part of the weights
  }

  /// Returns whether all columns are finite. Checks complete chunks, because the existing columns of the last chunk may
  /// be distributed over both of its vectors.
  [[nodiscard]] bool is_finite(const float* o) const {
    Vector differences = hn::Zero(kFloats);  // x - x is 0 for finite x, NaN otherwise
    for (std::int64_t c = 0; c < round_up(p_.head_dim_v, kChunk); c += kLanes) {
      const Vector x = hn::LoadU(kFloats, o + c);
      differences = hn::Add(differences, hn::Sub(x, x));
    }
    return hn::AllTrue(kFloats, hn::Eq(differences, differences));
  }

  /// Recomputes the row's sum of values, using only the keys that the row sees. Hidden keys must be left out, because
  /// their weight 0 times a NaN would be NaN.
  void sum_seen_values(int n, int r, float* o) {
    const float* p = scores_of(n, r);
    std::fill_n(o, round_up(p_.head_dim_v, kChunk), 0.0F);
    for (std::int64_t j = 0; j < keys_.leaf[n].count; ++j) {
      if (!sees(n, r, j)) continue;
      const Vector weight = hn::Set(kFloats, p[j]);
      const auto* value = static_cast<const T*>(*rows_of_type(keys_.v + j * keys_.leaves + n, 1, 1, p_.head_dim_v));
      for (std::int64_t c = 0; c < p_.head_dim_v; c += kChunk) {
        const std::int64_t count = p_.head_dim_v - c;
        const Columns v = count >= kChunk ? load_columns(value + c) : load_columns(value + c, count);
        hn::StoreU(hn::MulAdd(weight, v.a, hn::LoadU(kFloats, o + c)), kFloats, o + c);
        hn::StoreU(hn::MulAdd(weight, v.b, hn::LoadU(kFloats, o + c + kLanes)), kFloats, o + c + kLanes);
      }
    }
  }

  const DecodeProblem& p_;
  const DecodeTile& tile_;
  ScoreUnit unit_;
  std::int64_t q_stride_;
  std::int64_t columns_;  // number of columns of a state, including padding
  float* q_;
  float* scores_;
  float* missing_;
  bool widens_;
  float* widened_;
  const void* widened_rows_[kRowsWidened];
  KeyRows keys_;
};

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
