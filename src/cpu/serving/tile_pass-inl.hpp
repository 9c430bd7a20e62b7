// A tile of query rows over one leaf of cached keys: scores, exponentials, and the sum of the values.
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
#include "cpu/serving/quantized-inl.hpp"
#include "cpu/serving/state-inl.hpp"
#include "kernels/attention/score_transform.cuh"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

using core::DecodeProblem;

/// How products become scores.
struct ScoreUnit {
  ScaleParts scale;
  bool products_are_scores;

  explicit ScoreUnit(const DecodeProblem& p)
      : scale(ScaleParts::of_floats(p.scale)), products_are_scores(!p.transforms_scores() && !p.alibi_slopes) {}

  /// What a finished score is multiplied by to be a natural one.
  [[nodiscard]] float nats_per_score() const { return products_are_scores ? scale.nats_per_product : 1.0F; }
  [[nodiscard]] float log2_per_score() const { return static_cast<float>(nats_per_score() * kLog2E); }
};

// Where a cache lies in memory, its rows are prefetched into the first level of caches: keys so many bytes before they
// are read, values a block before. A block of values and the next one fit into 32 KiB, unless rows are long: sums of
// fewer rows would be loaded and stored too often.
constexpr std::int64_t kKeyBytesAhead = 8 << 10;
constexpr std::int64_t kValueBytesAtOnce = 16 << 10;
constexpr std::int64_t kFewestValuesAtOnce = 32;
constexpr std::int64_t kMostAhead = 64;  // rows

/// Where the keys of a leaf lie, and what their elements are multiplied by.
struct LeafKeys {
  std::int64_t begin = 0;  // of a vector of scores: which lane a key has follows from its position
  std::int64_t count = 0;
  bool some_missing = false;
  // Rows in the order in which they are read. Behind the keys, whose number is rounded up to kKeysAtOnce, the first
  // values, and behind the values the first keys of the next leaf: rows to prefetch, if the tile does so.
  const void* k[kLeaf + kMostAhead];
  const void* v[kLeaf + kMostAhead];
  float k_descale[kLeaf];  // those of keys that do not exist are 1. Not set without factors
  float v_descale[kLeaf];

  /// missing: a row of zeros, which stands for keys that do not exist. Not inlined: passes of all types share it.
  HWY_NOINLINE void find(const DecodeProblem& p, const DecodeTile& tile, const KeyRange& range,
                         std::int64_t end_of_tile, const void* missing) {
    begin = range.begin / kLanes * kLanes;
    count = range.end - begin;
    some_missing = false;
    std::fill(k, k + (range.begin - begin), missing);  // no row sees these
    std::fill(v, v + (range.begin - begin), missing);
    if (p.k_descale.data != nullptr) std::fill_n(k_descale, kLeaf, 1.0F);
    if (p.v_descale.data != nullptr) std::fill_n(v_descale, kLeaf, 1.0F);
    for (std::int64_t key = range.begin; key < range.end;) {
      const core::CacheRun run = p.run(tile.sequence, key);
      const std::int64_t end = std::min(range.end, key + run.count);
      some_missing |= run.block < 0;
      if (run.block >= 0) {
        find_factors(p.k_descale, tile, run, k_descale + (key - begin), end - key);
        find_factors(p.v_descale, tile, run, v_descale + (key - begin), end - key);
      }
      find_rows(p.k, tile, run, k + (key - begin), end - key, missing);
      find_rows(p.v, tile, run, v + (key - begin), end - key, missing);
      key = end;
    }
    const std::int64_t scored = round_up(count, kKeysAtOnce);
    std::fill(k + count, k + scored, missing);
    std::fill(v + count, v + count + kMostAhead, missing);
    if (!tile.prefetches) return;
    const std::int64_t last = std::min(end_of_tile, range.end + kMostAhead);
    for (std::int64_t key = range.end; key < last;) {
      const core::CacheRun run = p.run(tile.sequence, key);
      const std::int64_t end = std::min(last, key + run.count);
      find_rows(p.k, tile, run, v + (key - begin), end - key, missing);
      key = end;
    }
    std::copy_n(v, kMostAhead, k + scored);
  }

  /// s *= factors, in whole vectors of keys.
  HWY_NOINLINE void multiply(float* HWY_RESTRICT s, const float* HWY_RESTRICT factors) const {
    for (std::int64_t j = 0; j < count; j += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(kFloats, s + j), hn::LoadU(kFloats, factors + j)), kFloats, s + j);
    }
  }

 private:
  /// The next `rows` rows of a run of keys.
  static void find_rows(const Tensor& cache, const DecodeTile& tile, const core::CacheRun& run, const void** to,
                        std::int64_t rows, const void* missing) {
    if (run.block < 0) return void(std::fill_n(to, rows, missing));
    const std::int64_t step = cache.stride[2] * dtype_bytes(cache.dtype);
    const auto* from = static_cast<const char*>(core::element(cache, run.block, tile.key_head, run.row));
    for (std::int64_t n = 0; n < rows; ++n, from += step) to[n] = from;
  }

  HWY_NOINLINE static void find_factors(const core::Descale& descale, const DecodeTile& tile, const core::CacheRun& run,
                                        float* to, std::int64_t keys) {
    if (descale.data == nullptr) return;
    const float* factor = descale.of(tile.sequence.index, tile.key_head, {run.block, run.row});
    for (std::int64_t n = 0; n < keys; ++n) to[n] = core::multiplier(factor[n * descale.row_stride]);
  }
};

constexpr int kRowsWidened = 32;  // rows of a cache of 8 bits that are floats at a time: 16 KiB of 128 columns
static_assert(kRowsWidened % kKeysAtOnce == 0 && kLeaf % kRowsWidened == 0);

/// A tile on its way over leaves. T is the type of the cache, or float where that is one of 8 bits: such rows are made
/// floats, a few at a time, before they are multiplied.
template <class T>
class TilePass {
 public:
  TilePass(const DecodeProblem& p, const DecodeTile& tile, Scratch& scratch)
      : p_(p), tile_(tile), unit_(p), q_stride_(round_up(p.head_dim, kChunk)), widens_(core::is_quantized(p.k.dtype)) {
    const std::int64_t row_bytes = std::max(p.head_dim, p.head_dim_v) * dtype_bytes(p.k.dtype);
    values_at_once_ = kMostAhead;
    if (tile.prefetches) {
      ahead_ = std::clamp<std::int64_t>(kKeyBytesAhead / row_bytes, kKeysAtOnce, kMostAhead);
      values_at_once_ = std::clamp(kValueBytesAtOnce / row_bytes, kFewestValuesAtOnce, kMostAhead);
    }
    if (widens_) values_at_once_ = kRowsWidened;
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

  /// The result over the keys of leaf number `leaf`, into `state`.
  void visit(std::int64_t leaf, const State& state) {
    const KeyRange of_tile = tile_.keys(p_);
    keys_.find(p_, tile_, {std::max(of_tile.begin, leaf * kLeaf), std::min(of_tile.end, (leaf + 1) * kLeaf)},
               of_tile.end, missing_);
    for (std::int64_t first = 0; first < keys_.count; first += kRowsWidened) {
      const std::int64_t count = std::min<std::int64_t>(kRowsWidened, round_up(keys_.count - first, kKeysAtOnce));
      const void* const* keys = rows_of_type(keys_.k + first, count, p_.head_dim);
      for (std::int64_t j = 0; j < count; j += kKeysAtOnce) {
        if (ahead_ > 0) {
          prefetch_rows(keys_.k + first + j + ahead_, kKeysAtOnce, p_.head_dim * dtype_bytes(p_.k.dtype));
        }
        for_row_blocks(tile_.rows, [&](int r, auto rows) HWY_ATTR {
          float* scores = scores_ + r * kLeaf + first + j;
          score_keys<T, rows.value>(keys + j, p_.head_dim, q_ + r * q_stride_, q_stride_, scores);
        });
      }
    }
    for (int r = 0; r < tile_.rows; ++r) softmax(r, state);
    const std::int64_t columns = state_columns(p_.head_dim_v);
    std::fill_n(state.o, tile_.rows * columns, 0.0F);
    for (std::int64_t j = 0; j < keys_.count; j += values_at_once_) {
      const std::int64_t count = std::min(values_at_once_, keys_.count - j);
      if (ahead_ > 0 && widens_) prefetch_rows(keys_.v + j + ahead_, count, p_.head_dim_v);
      const void* const* values = rows_of_type(keys_.v + j, count, p_.head_dim_v);
      for_row_blocks(tile_.rows, [&](int r, auto rows) HWY_ATTR {
        const std::int64_t ahead = r == 0 && ahead_ > 0 && !widens_ ? values_at_once_ : 0;
        add_values<T, rows.value>(values, ahead, count, p_.head_dim_v, scores_ + r * kLeaf + j, state.o + r * columns,
                                  columns);
      });
    }
    for (int r = 0; r < tile_.rows; ++r) {
      if (!is_finite(state.o + r * columns)) sum_seen_values(r, state.o + r * columns);
    }
  }

 private:
  [[nodiscard]] static std::int64_t row_floats(const DecodeProblem& p) {
    return round_up(std::max(p.head_dim, p.head_dim_v), kChunk);
  }

  [[nodiscard]] static std::int64_t widened_floats(const DecodeProblem& p) {
    return core::is_quantized(p.k.dtype) ? kRowsWidened * row_floats(p) : 0;
  }

  /// `count` rows of the cache as rows of T: where they lie, or as floats, until the next call.
  HWY_INLINE const void* const* rows_of_type(const void* const* rows, std::int64_t count, std::int64_t cols) {
    if constexpr (std::is_same_v<T, float>) {
      if (widens_) {
        widen_rows(rows, count, p_.k.dtype, cols, widened_, row_floats(p_));
        return widened_rows_;
      }
    }
    return rows;
  }

  void pack_queries() {
    for (int r = 0; r < tile_.rows; ++r) {
      const core::Matrix rows = core::q_matrix(p_.q, tile_.sequence, tile_.head(p_, r));
      const std::int64_t begin = tile_.row(p_, r) * rows.row_stride;
      if constexpr (std::is_same_v<T, float>) {  // beside a cache of 8 bits any type
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

  /// Whether the row sees key j of the leaf.
  [[nodiscard]] bool sees(int r, std::int64_t j) const {
    const std::int64_t i = tile_.row(p_, r);
    const std::int64_t key = keys_.begin + j;
    return p_.keys_of_row(tile_.sequence, i).contains(key) && keys_.k[j] != missing_ &&
           !p_.tree_hides(tile_.sequence, i, key);
  }

  /// Products to scores; those of keys that the row does not see to -inf. The last ones, up to whole vectors, are -inf.
  void finish_scores(int r) {
    float* s = scores_ + r * kLeaf;
    const std::int64_t whole = round_up(keys_.count, kLanes);
    if (p_.k_descale.data != nullptr) keys_.multiply(s, keys_.k_descale);
    if (!unit_.products_are_scores) transform(r, whole);
    const KeyRange seen = p_.keys_of_row(tile_.sequence, tile_.row(p_, r));
    const std::int64_t from = std::clamp<std::int64_t>(seen.begin - keys_.begin, 0, keys_.count);
    const std::int64_t to = std::clamp<std::int64_t>(seen.end - keys_.begin, from, keys_.count);
    std::fill(s, s + from, -kInfinity);
    std::fill(s + to, s + whole, -kInfinity);
    if (!keys_.some_missing && p_.tree_mask == nullptr) return;
    const std::int64_t tree_begin = tile_.sequence.seqlen_k - tile_.sequence.seqlen_q - keys_.begin;
    for (std::int64_t j = keys_.some_missing ? from : std::max(from, tree_begin); j < to; ++j) {
      if (!sees(r, j)) s[j] = -kInfinity;
    }
  }

  /// Natural scores: the transform, and the term by position.
  void transform(int r, std::int64_t whole) {
    float* s = scores_ + r * kLeaf;
    const core::DecodeSequence& seq = tile_.sequence;
    const Vector nats = hn::Set(kFloats, unit_.scale.nats_per_product);
    const Vector cap = hn::Set(kFloats, static_cast<float>(p_.transform_cap));
    const double slope_of_head = p_.alibi_slopes ? core::load(*p_.alibi_slopes, seq.index, tile_.head(p_, r), 0, 0) : 0;
    const Vector slope = hn::Set(kFloats, static_cast<float>(slope_of_head));
    const std::int64_t first = tile_.row(p_, r) + seq.seqlen_k - seq.seqlen_q - keys_.begin;
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

  /// Scores of the row to exponentials, their maximum and their sum.
  void softmax(int r, const State& state) {
    finish_scores(r);
    float* s = scores_ + r * kLeaf;
    Vector top = hn::Set(kFloats, -kInfinity);
    // A NaN score is Max's first operand, which it does not give back; its exponential is NaN all the same.
    for (std::int64_t j = 0; j < keys_.count; j += kLanes) top = hn::Max(hn::LoadU(kFloats, s + j), top);
    const float row_max = hn::GetLane(hn::MaxOfLanes(kFloats, top));
    const Vector base = hn::Set(kFloats, row_max == -kInfinity ? 0.0F : row_max);
    const Vector unit = hn::Set(kFloats, unit_.log2_per_score());
    Vector sum = hn::Zero(kFloats);
    for (std::int64_t j = 0; j < keys_.count; j += kLanes) {
      const Vector p = exp_above(hn::LoadU(kFloats, s + j), base, unit);
      hn::StoreU(p, kFloats, s + j);
      sum = hn::Add(sum, p);
    }
    state.row_max[r] = row_max;
    state.row_sum[r] = hn::GetLane(hn::SumOfLanes(kFloats, sum));
    if (p_.v_descale.data != nullptr)
      keys_.multiply(s, keys_.v_descale);  // what the elements of the values are weighted by
  }

  /// Looks at whole chunks: half of the columns of the last one may lie in its second vector.
  [[nodiscard]] bool is_finite(const float* o) const {
    Vector differences = hn::Zero(kFloats);  // x - x is 0 for finite x, NaN otherwise
    for (std::int64_t c = 0; c < round_up(p_.head_dim_v, kChunk); c += kLanes) {
      const Vector x = hn::LoadU(kFloats, o + c);
      differences = hn::Add(differences, hn::Sub(x, x));
    }
    return hn::AllTrue(kFloats, hn::Eq(differences, differences));
  }

  /// The row's sum of values anew, of the keys that it sees only: 0 * NaN of another key is NaN.
  void sum_seen_values(int r, float* o) {
    const float* p = scores_ + r * kLeaf;
    std::fill_n(o, round_up(p_.head_dim_v, kChunk), 0.0F);
    for (std::int64_t j = 0; j < keys_.count; ++j) {
      if (!sees(r, j)) continue;
      const Vector weight = hn::Set(kFloats, p[j]);
      const auto* value = static_cast<const T*>(*rows_of_type(keys_.v + j, 1, p_.head_dim_v));
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
  float* q_;
  float* scores_;
  float* missing_;
  bool widens_;
  std::int64_t ahead_ = 0;       // rows, 0: none are prefetched
  std::int64_t values_at_once_;  // rows that are read once for each few query rows, and stay close that long
  float* widened_;
  const void* widened_rows_[kRowsWidened];
  LeafKeys keys_;
};

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
